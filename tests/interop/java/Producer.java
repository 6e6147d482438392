import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends numbered messages and prints what became of them, one fact per line.
 *
 * Arguments: NAMESRV TOPIC COUNT BODY_BYTES. The body is the message's number as text, padded with blanks to
 * BODY_BYTES, so that a consumer can tell which of them it has seen.
 *
 * Output: "status NAME N" per status, "failed N" and the first failure as "error TEXT", the first and last offset
 * message id as "first ID" and "last ID", and as the final line "sent N ms M". Exit code 0 when all were SEND_OK.
 */
public final class Producer {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        int bodyBytes = Integer.parseInt(args[3]);

        DefaultMQProducer producer = new DefaultMQProducer("interop_producer_" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(namesrv);
        producer.start();

        Map<String, Integer> statuses = new TreeMap<>();
        int failed = 0;
        String error = null;
        String first = null;
        String last = null;
        long begin = System.nanoTime();
        for (int i = 0; i < count; i++) {
            byte[] number = Integer.toString(i).getBytes(StandardCharsets.US_ASCII);
            byte[] body = Arrays.copyOf(number, Math.max(bodyBytes, number.length));
            Arrays.fill(body, number.length, body.length, (byte) ' ');
            try {
                SendResult result = producer.send(new Message(topic, "TagI", "key" + i, body));
                statuses.merge(result.getSendStatus().name(), 1, Integer::sum);
                if (first == null) {
                    first = result.getOffsetMsgId();
                }
                last = result.getOffsetMsgId();
            } catch (Exception e) {
                failed++;
                if (error == null) {
                    error = String.valueOf(e).replace('\n', ' ');
                }
            }
        }
        long ms = (System.nanoTime() - begin) / 1_000_000;
        for (Map.Entry<String, Integer> entry : statuses.entrySet()) {
            System.out.println("status " + entry.getKey() + " " + entry.getValue());
        }
        System.out.println("failed " + failed);
        if (error != null) {
            System.out.println("error " + error);
        }
        System.out.println("first " + first);
        System.out.println("last " + last);
        int ok = statuses.getOrDefault("SEND_OK", 0);
        System.out.println("sent " + ok + " ms " + ms);
        producer.shutdown();
        System.exit(ok == count ? 0 : 1);
    }
}
