import java.nio.charset.StandardCharsets;
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
 * n-th number is refused, so it must come back through the retry topic.
 *
 * Output: "ready" once the client has started, then "distinct N", "duplicates N", "redelivered N" (messages that came
 * with a reconsume count) and as the final line "done ms M". Exit code 0 when COUNT distinct bodies were seen.
 */
public final class PushConsumer {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        String group = args[2];
        int count = Integer.parseInt(args[3]);
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
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.subscribe(topic, "TagI");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean later = false;
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.US_ASCII).trim();
                if (message.getReconsumeTimes() > 0) {
                    redelivered.incrementAndGet();
                }
                if (retryEvery > 0 && Integer.parseInt(body) % retryEvery == 0
                        && refused.putIfAbsent(body, Boolean.TRUE) == null) {
                    later = true;
                    continue;
                }
                if (seen.putIfAbsent(body, Boolean.TRUE) != null) {
                    duplicates.incrementAndGet();
                } else if (seen.size() >= count) {
                    enough.countDown();
                }
            }
            return later ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long begin = System.nanoTime();
        consumer.start();
        System.out.println("ready");
        enough.await(seconds, TimeUnit.SECONDS);
        long ms = (System.nanoTime() - begin) / 1_000_000;
        consumer.shutdown();
        System.out.println("distinct " + seen.size());
        System.out.println("duplicates " + duplicates.get());
        System.out.println("redelivered " + redelivered.get());
        System.out.println("done ms " + ms);
        System.exit(seen.size() >= count ? 0 : 1);
    }
}
