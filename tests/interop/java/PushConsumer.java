import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes what Producer sent until enough distinct bodies have been seen or the time is up.
 *
 * Arguments: NAMESRV TOPIC GROUP COUNT SECONDS [RETRY_EVERY]. With RETRY_EVERY = n > 0 the first delivery of every
 * n-th number is refused, so it must come back through the retry topic. COUNT may be @FILE: the number that this file
 * will hold once it is there; until then the consumer goes on, and asks the nameservers for routes every second.
 *
 * Output: "ready" once the client has started, then "distinct N", "duplicates N", "redelivered N" (messages that came
 * with a reconsume count) and as the final line "done ms M". Exit code 0 when COUNT distinct bodies were seen.
 */
public final class PushConsumer {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        String group = args[2];
        Path later = args[3].startsWith("@") ? Path.of(args[3].substring(1)) : null;
        AtomicInteger count = new AtomicInteger(later == null ? Integer.parseInt(args[3]) : Integer.MAX_VALUE);
        int seconds = Integer.parseInt(args[4]);
        int retryEvery = args.length > 5 ? Integer.parseInt(args[5]) : 0;

        ConcurrentHashMap<String, Boolean> seen = new ConcurrentHashMap<>();
        ConcurrentHashMap<String, Boolean> refused = new ConcurrentHashMap<>();
        AtomicInteger duplicates = new AtomicInteger();
        AtomicInteger redelivered = new AtomicInteger();
        CountDownLatch enough = new CountDownLatch(1);

        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // 5.3.3 loses its own race now and then: its second heartbeat and its first rebalance both fall 1 s after the
        // start, the one that should announce the new subscription version is skipped, and every broker refuses
        // its pulls until the next one, by default 30 s later
        consumer.setHeartbeatBrokerInterval(2_000);
        if (later != null) {
            consumer.setPollNameServerInterval(1_000);
        }
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.subscribe(topic, "TagI");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean again = false;
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.US_ASCII).trim();
                if (message.getReconsumeTimes() > 0) {
                    redelivered.incrementAndGet();
                }
                if (retryEvery > 0 && Integer.parseInt(body) % retryEvery == 0
                        && refused.putIfAbsent(body, Boolean.TRUE) == null) {
                    again = true;
                    continue;
                }
                if (seen.putIfAbsent(body, Boolean.TRUE) != null) {
                    duplicates.incrementAndGet();
                } else if (seen.size() >= count.get()) {
                    enough.countDown();
                }
            }
            return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long begin = System.nanoTime();
        consumer.start();
        System.out.println("ready");
        long end = begin + TimeUnit.SECONDS.toNanos(seconds);
        while (System.nanoTime() < end && !enough.await(50, TimeUnit.MILLISECONDS)) {
            if (later != null && Files.exists(later)) {
                count.set(Integer.parseInt(Files.readString(later).trim()));
                later = null;
            }
            if (seen.size() >= count.get()) {
                break;
            }
        }
        long ms = (System.nanoTime() - begin) / 1_000_000;
        consumer.shutdown();
        System.out.println("distinct " + seen.size());
        System.out.println("duplicates " + duplicates.get());
        System.out.println("redelivered " + redelivered.get());
        System.out.println("done ms " + ms);
        System.exit(seen.size() >= count.get() ? 0 : 1);
    }
}
