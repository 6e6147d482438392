import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes the messages of Producer until it has received enough different bodies, or until the time is over.
 *
 * Arguments: NAMESRV TOPIC GROUP COUNT SECONDS [RETRY_EVERY] [NAME=VALUE...]. With RETRY_EVERY = n > 0 the first delivery of every
 * n-th number is refused, so that the message comes again through the retry topic. COUNT may be @FILE: then the program runs until
 * FILE exists, and reads COUNT from it.
 *
 * Named arguments: namespace. ordered=1 consumes queue by queue. broadcast=1 consumes in broadcast mode. tags is the subscription
 * expression (default: TagI). trace is the topic for message traces. dead=N always refuses every N-th number. retries is the largest
 * number of redeliveries. accessKey and secretKey sign every request.
 *
 * Output: "ready" once the client has started; then "distinct N", "duplicates N", "redelivered N" (messages with a reconsume count),
 * "disorder N" (first deliveries that came after a later message of the same queue), and finally "done ms M". The exit code is 0 if
 * COUNT different bodies were received.
 */
public final class PushConsumer {
    private final Map<String, Boolean> seen = new ConcurrentHashMap<>();
    private final Map<String, Boolean> refused = new ConcurrentHashMap<>();
    private final Map<String, Integer> latest = new ConcurrentHashMap<>();
    private final AtomicInteger duplicates = new AtomicInteger();
    private final AtomicInteger redelivered = new AtomicInteger();
    private final AtomicInteger disorder = new AtomicInteger();
    private final CountDownLatch enough = new CountDownLatch(1);
    private final AtomicInteger count = new AtomicInteger();
    private int retryEvery;
    private int dead;

    public static void main(String[] args) throws Exception {
        System.exit(run(args, System.out));
    }

    static int run(String[] args, PrintStream out) throws Exception {
        return new PushConsumer().consume(
            new Options(
                args, "namespace", "ordered", "broadcast", "tags", "dead", "retries", "accessKey", "secretKey", "trace"),
            out);
    }

    private int consume(Options options, PrintStream out) throws Exception {
        Path later = options.at(3).startsWith("@") ? Path.of(options.at(3).substring(1)) : null;
        count.set(later == null ? options.number(3) : Integer.MAX_VALUE);
        int seconds = options.number(4);
        retryEvery = Integer.parseInt(options.at(5, "0"));
        dead = options.get("dead", 0);

        String trace = options.get("trace", "");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.at(2), options.hook(), new AllocateMessageQueueAveragely(), !trace.isEmpty(), trace);
        consumer.setNamesrvAddr(options.at(0));
        if (!options.get("namespace", "").isEmpty()) {
            consumer.setNamespace(options.get("namespace", ""));
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // With its default, 5.3.3's consumer sometimes cannot pull for 30 s: its second heartbeat and its first rebalance
        // both come 1 s after the start. Then the heartbeat with the new subscription version may be skipped, and every
        // broker refuses pulls until the next heartbeat. So send heartbeats every 2 s.
        consumer.setHeartbeatBrokerInterval(2_000);
        // With its default, a consumer would find the group's retry topic only after 30 s.
        consumer.setPollNameServerInterval(1_000);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setMaxReconsumeTimes(options.get("retries", -1));
        if (options.get("broadcast", 0) == 1) {
            broadcast(consumer);
            consumer.setInstanceName(Long.toString(System.nanoTime())); // gives each member in this JVM a client id of its own
        }
        consumer.subscribe(options.at(1), options.get("tags", "TagI"));
        if (options.get("ordered", 0) == 1) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                take(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                take(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        long begin = System.nanoTime();
        consumer.start();
        out.println("ready");
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
        out.println("distinct " + seen.size());
        out.println("duplicates " + duplicates.get());
        out.println("redelivered " + redelivered.get());
        out.println("disorder " + disorder.get());
        out.println("done ms " + ms);
        return seen.size() >= count.get() ? 0 : 1;
    }

    /** Records received messages; returns false if a message is refused, so that the broker delivers the batch again. */
    private boolean take(List<MessageExt> messages) {
        boolean again = false;
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.US_ASCII).trim();
            int number = Integer.parseInt(body);
            if (message.getReconsumeTimes() > 0) {
                redelivered.incrementAndGet();
            }
            if (dead > 0 && number % dead == 0
                    || retryEvery > 0 && number % retryEvery == 0 && refused.putIfAbsent(body, Boolean.TRUE) == null) {
                again = true;
                continue;
            }
            if (seen.putIfAbsent(body, Boolean.TRUE) != null) {
                duplicates.incrementAndGet();
                continue;
            }
            Integer before = latest.put(message.getBrokerName() + message.getQueueId(), number);
            if (before != null && before > number) {
                disorder.incrementAndGet();
            }
            if (seen.size() >= count.get()) {
                enough.countDown();
            }
        }
        return !again;
    }

    /** Sets broadcast mode by reflection, because the argument's type is in different packages in 4.x and 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class<Enum>) method.getParameterTypes()[0], "BROADCASTING"));
            }
        }
    }
}
