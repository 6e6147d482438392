import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends numbered messages and prints what became of them, one fact per line.
 *
 * Arguments: NAMESRV TOPIC COUNT BODY_BYTES BATCH [PAUSE_MS STOP_FILE]. The body is the message's number as text, padded with blanks to
 * BODY_BYTES, so that a consumer can tell which of them it has seen. BATCH messages go in one request (1 = singly).
 * With STOP_FILE it pauses PAUSE_MS after each request, asks the nameservers for routes every second instead of every 30,
 * and ends once that file is there, or after COUNT; it then counts as a success if nothing failed.
 *
 * Output: "status NAME N" per status of a request, "failed N" and the first failure as "error TEXT", the first and last offset
 * message id as "first ID" and "last ID", and as the final line "sent N ms M". Exit code 0 when all were SEND_OK.
 */
public final class Producer {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        int bodyBytes = Integer.parseInt(args[3]);
        int batch = Integer.parseInt(args[4]);
        int pauseMs = args.length > 5 ? Integer.parseInt(args[5]) : 0;
        Path stop = args.length > 6 ? Path.of(args[6]) : null;

        DefaultMQProducer producer = new DefaultMQProducer("interop_producer_" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(namesrv);
        if (stop != null) {
            producer.setPollNameServerInterval(1_000);
        } else {
            producer.setSendMsgTimeout(20_000); // all are to arrive, also while a disk stands still
        }
        producer.start();

        Map<String, Integer> statuses = new TreeMap<>();
        int failed = 0;
        String error = null;
        String first = null;
        String last = null;
        long begin = System.nanoTime();
        int ok = 0;
        for (int i = 0; i < count; i += batch) {
            List<Message> messages = new ArrayList<>();
            for (int j = i; j < Math.min(i + batch, count); j++) {
                messages.add(new Message(topic, "TagI", "key" + j, body(j, bodyBytes)));
            }
            try {
                SendResult result = batch == 1 ? producer.send(messages.get(0)) : producer.send(messages);
                statuses.merge(result.getSendStatus().name(), 1, Integer::sum);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    ok += messages.size();
                }
                if (first == null) {
                    first = result.getOffsetMsgId();
                }
                last = result.getOffsetMsgId();
                if (ok == messages.size()) {
                    System.out.println("begun");
                }
            } catch (Exception e) {
                failed += messages.size();
                if (error == null) {
                    error = String.valueOf(e).replace('\n', ' ');
                }
            }
            if (stop != null) {
                Thread.sleep(pauseMs);
                if (Files.exists(stop)) {
                    break;
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
        System.out.println("sent " + ok + " ms " + ms);
        producer.shutdown();
        System.exit(stop == null && ok < count || failed > 0 ? 1 : 0);
    }

    private static byte[] body(int number, int size) {
        byte[] text = Integer.toString(number).getBytes(StandardCharsets.US_ASCII);
        byte[] body = Arrays.copyOf(text, Math.max(size, text.length));
        Arrays.fill(body, text.length, body.length, (byte) ' ');
        return body;
    }
}
