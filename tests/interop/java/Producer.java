import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends numbered messages, and prints the results, one in each line.
 *
 * Arguments: NAMESRV TOPIC COUNT BODY_BYTES BATCH [PAUSE_MS STOP_FILE] [NAME=VALUE...]. A message's body is its number as text, padded
 * with blanks to BODY_BYTES, so that a consumer knows which messages it has received. A request has BATCH messages. With STOP_FILE the
 * program pauses for PAUSE_MS after each request, and asks the nameservers for routes every second instead of every 30 s. It ends when
 * STOP_FILE exists, or after COUNT messages, and then succeeds if no send has failed.
 *
 * Named arguments: namespace. ordered=N sends message i to queue i modulo N. tags=A,B uses these tags in turn (default: TagI). delay is
 * a delay level. trace is the topic for message traces. compress=LZ4|ZSTD|ZLIB is the compression of bodies of more than 4 KB, for the
 * producer of 5.x. accessKey and secretKey sign every request.
 *
 * Output: "status NAME N" for each status of a request, "failed N", the first failure as "error TEXT", the first and the last offset
 * message id as "first ID" and "last ID", and finally "sent N ms M". The exit code is 0 if every status was SEND_OK.
 */
public final class Producer {
    private static final AtomicInteger SERIAL = new AtomicInteger();

    public static void main(String[] args) throws Exception {
        System.exit(run(args, System.out));
    }

    static int run(String[] args, PrintStream out) throws Exception {
        Options options = new Options(
            args, "namespace", "ordered", "tags", "delay", "compress", "accessKey", "secretKey", "trace");
        String namesrv = options.at(0);
        String topic = options.at(1);
        int count = options.number(2);
        int bodyBytes = options.number(3);
        int batch = options.number(4);
        int pauseMs = Integer.parseInt(options.at(5, "0"));
        Path stop = options.at(6, null) == null ? null : Path.of(options.at(6));
        int queues = options.get("ordered", 0);
        String[] tags = options.get("tags", "TagI").split(",");
        int delay = options.get("delay", 0);

        String name = ProcessHandle.current().pid() + "_" + SERIAL.incrementAndGet();
        String trace = options.get("trace", "");
        DefaultMQProducer producer = new DefaultMQProducer(
            "interop_producer_" + name, options.hook(), !trace.isEmpty(), trace);
        producer.setInstanceName(name);
        producer.setNamesrvAddr(namesrv);
        if (!options.get("namespace", "").isEmpty()) {
            producer.setNamespace(options.get("namespace", ""));
        }
        if (!options.get("compress", "").isEmpty()) {
            Class<?> kinds = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
            Object kind = kinds.getMethod("of", String.class).invoke(null, options.get("compress", ""));
            producer.getClass().getMethod("setCompressType", kinds).invoke(producer, kind); // by reflection: 4.9 has no such method
        }
        if (stop != null) {
            producer.setPollNameServerInterval(1_000);
        } else {
            producer.setSendMsgTimeout(20_000); // long, because all messages must arrive even if the disk hangs for some seconds
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
                Message message = new Message(topic, tags[j % tags.length], "key" + j, body(j, bodyBytes));
                if (delay > 0) {
                    message.setDelayTimeLevel(delay);
                }
                messages.add(message);
            }
            try {
                SendResult result;
                if (queues > 0) {
                    int turn = i / batch % queues;
                    result = producer.send(messages.get(0), (all, message, chosen) -> all.get((Integer) chosen), turn);
                } else {
                    result = batch == 1 ? producer.send(messages.get(0)) : producer.send(messages);
                }
                statuses.merge(result.getSendStatus().name(), 1, Integer::sum);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    ok += messages.size();
                }
                if (first == null) {
                    first = result.getOffsetMsgId();
                }
                last = result.getOffsetMsgId();
                if (ok == messages.size()) {
                    out.println("begun");
                }
            } catch (Exception e) {
                failed += messages.size();
                if (error == null) {
                    String cause = e.getCause() == null ? "" : " because of " + e.getCause();
                    error = (e + cause).replace('\n', ' ');
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
            out.println("status " + entry.getKey() + " " + entry.getValue());
        }
        out.println("failed " + failed);
        if (error != null) {
            out.println("error " + error);
        }
        out.println("first " + first);
        out.println("last " + last);
        out.println("sent " + ok + " ms " + ms);
        if (!trace.isEmpty()) {
            Thread.sleep(2_000); // wait: traces are sent every half second, and shutdown loses traces that were not sent
        }
        producer.shutdown();
        return stop == null && ok < count || failed > 0 ? 1 : 0;
    }

    private static byte[] body(int number, int size) {
        byte[] text = Integer.toString(number).getBytes(StandardCharsets.US_ASCII);
        byte[] body = Arrays.copyOf(text, Math.max(size, text.length));
        Arrays.fill(body, text.length, body.length, (byte) ' ');
        return body;
    }
}
