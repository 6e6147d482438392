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
 * Sends numbered messages and prints what became of them, one fact per line.
 *
 * Arguments: NAMESRV TOPIC COUNT BODY_BYTES BATCH [PAUSE_MS STOP_FILE] [NAME=VALUE...]. The body is the message's number as text,
 * padded with blanks to BODY_BYTES, so that a consumer can tell which of them it has seen. BATCH messages go in one request
 * (1 = singly). With STOP_FILE it pauses PAUSE_MS after each request, asks the nameservers for routes every second instead of every 30,
 * and ends once that file is there, or after COUNT; it then counts as a success if nothing failed.
 *
 * Named: namespace; ordered=N sends message i to queue i modulo N; tags=A,B gives them in turn (TagI by default);
 * delay is a level; trace is the topic into which it writes message traces; compress=LZ4|ZSTD|ZLIB is how 5.x's producer
 * compresses bodies of more than 4 KB; accessKey and secretKey sign every request.
 *
 * Output: "status NAME N" per status of a request, "failed N" and the first failure as "error TEXT", the first and last offset
 * message id as "first ID" and "last ID", and as the final line "sent N ms M". Exit code 0 when all were SEND_OK.
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
            producer.getClass().getMethod("setCompressType", kinds).invoke(producer, kind); // 4.9 has only ZLIB
        }
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
            Thread.sleep(2_000); // traces go out each half second, and those that wait are lost with the producer
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
