import java.io.BufferedWriter;
import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.impl.producer.TopicPublishInfo;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;

/**
 * Runs RocketMQ's own Java client under the comparison's open-loop load. It sends messages with and without retries, and looks up routes
 * without a cache.
 *
 * Argument: a properties file, which bench/java_client.py writes and describes. The program prints "client ready" when it can send to the
 * topics. Then it waits for the file "schedule", which has one operation "OP NUMBER DUE_NS TOPIC" in each line. It does these operations
 * until the file "end" names the end of the load. Instants are those of System.nanoTime(), which is CLOCK_MONOTONIC on Linux. For each
 * operation and each changed route, the program writes one line with a JSON object to the file "output". It does not judge outcomes.
 */
@SuppressWarnings("deprecation") // only internal methods of the client show its route table
public final class Sender {
    private static final int GET_ROUTE = 105;
    private static final int RETRY_MS = 20;
    private static final long LOOK_NS = 500_000_000;
    private static final String NUMBER = "benchNumber";

    private final Properties config;
    private final BufferedWriter output;
    private final byte[] body;
    private final List<Client> producers = new ArrayList<>();
    private final List<Client> lookups = new ArrayList<>();
    private volatile long endNs = Long.MAX_VALUE;

    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(args[0]))) {
            config.load(reader);
        }
        try (BufferedWriter output = Files.newBufferedWriter(Path.of(config.getProperty("output")))) {
            new Sender(config, output).run();
        } catch (Throwable e) {
            e.printStackTrace();
            fail("the load ended");
        }
        System.exit(0); // needed because the client's threads keep the JVM running
    }

    private Sender(Properties config, BufferedWriter output) {
        this.config = config;
        this.output = output;
        this.body = new byte[number("body_bytes")];
        Arrays.fill(body, (byte) 'x');
    }

    private int number(String name) {
        return Integer.parseInt(config.getProperty(name));
    }

    private String[] words(String name) {
        return config.getProperty(name).isEmpty() ? new String[0] : config.getProperty(name).split(",");
    }

    private void run() throws Exception {
        warmUp();
        System.out.println("client ready");
        Path scheduled = Path.of(config.getProperty("schedule"));
        while (!Files.exists(scheduled)) {
            Thread.sleep(10);
        }
        startClients();
        Thread watcher = new Thread(this::watch, "watcher");
        watcher.start();
        List<Thread> users = new ArrayList<>();
        Map<String, List<Due>> due = schedule(scheduled);
        int first = 0;
        for (String op : new String[] {"lookup", "send", "send_once"}) {
            List<Client> clients = op.equals("lookup") ? lookups : of(op);
            Shared shared = new Shared(due.getOrDefault(op, List.of()));
            int count = number("users." + op);
            for (int place = 0; place < count; place++) {
                Client client = clients.get(place % clients.size());
                int user = first + place;
                Thread thread = new Thread(() -> use(op, client, user, shared), op + "-" + place);
                thread.start();
                users.add(thread);
            }
            first += count;
        }
        for (Thread user : users) {
            user.join();
        }
        watcher.join();
    }

    private List<Client> of(String op) {
        return producers.stream().filter(client -> client.op.equals(op)).toList();
    }

    /** Starts and ends a client, so that its classes are loaded before the load begins. */
    private void warmUp() throws Exception {
        Client client = new Client("warm-up", 0, 0, 0);
        client.start();
        for (String topic : words("topics")) {
            try {
                client.send(topic, -1, body);
            } catch (Exception e) {
                e.printStackTrace(); // a failed send does not matter here
            }
        }
        client.producer.shutdown();
    }

    /** Starts all clients at once, as the Python load generator does, so that they ask nameservers at the same instants. */
    private void startClients() throws Exception {
        int each = number("send_clients");
        for (String op : new String[] {"send", "send_once"}) {
            for (int place = 0; place < each; place++) {
                producers.add(new Client(op, producers.size(), place, op.equals("send") ? number("retries") : 0));
            }
        }
        for (int place = 0; place < number("lookup_clients"); place++) {
            lookups.add(new Client("lookup", place, place, 0));
        }
        List<Client> all = new ArrayList<>(producers);
        all.addAll(lookups);
        List<Thread> starting = new ArrayList<>();
        for (Client client : all) {
            Thread thread = new Thread(() -> {
                try {
                    client.start();
                } catch (Throwable e) {
                    e.printStackTrace();
                    fail("client " + client.index + " of " + client.op + " cannot be started");
                }
            });
            thread.start();
            starting.add(thread);
        }
        for (Thread thread : starting) {
            thread.join();
        }
    }

    private static Map<String, List<Due>> schedule(Path path) throws IOException {
        Map<String, List<Due>> found = new HashMap<>();
        for (String line : Files.readAllLines(path)) {
            String[] parts = line.split(" ");
            Due due = new Due(Long.parseLong(parts[1]), Long.parseLong(parts[2]), parts[3]);
            found.computeIfAbsent(parts[0], op -> new ArrayList<>()).add(due);
        }
        return found;
    }

    /** Does due operations of one kind until the load has ended. */
    private void use(String op, Client client, int user, Shared shared) {
        try {
            while (true) {
                Due due = shared.take();
                if (due == null) {
                    if (endNs == Long.MAX_VALUE) {
                        fail("the schedule of " + op + " is over, the load is not");
                    }
                    return;
                }
                boolean queued = due.ns - System.nanoTime() < 0;
                long ahead;
                while ((ahead = due.ns - System.nanoTime()) > 0 && due.ns < endNs) {
                    LockSupport.parkNanos(Math.min(ahead, LOOK_NS)); // sleep, because hundreds of users wait at the same time
                }
                if (due.ns >= endNs) {
                    return;
                }
                Line line = new Line("operation").put("op", op).put("client", client.place).put("user", user);
                line.put("number", due.number).put("due_ns", due.ns).put("queued", queued).put("topic", due.topic);
                client.asked.set(new Asked());
                line.put("begin_ns", System.nanoTime());
                try {
                    if (op.equals("lookup")) {
                        TopicRouteData route = client.lookUp(due.topic);
                        line.put("end_ns", System.nanoTime());
                        shown(line, route);
                    } else {
                        SendResult result = client.send(due.topic, due.number, body);
                        line.put("end_ns", System.nanoTime()).put("status", result.getSendStatus().name());
                        line.put("broker", result.getMessageQueue().getBrokerName());
                    }
                } catch (Exception e) {
                    line.put("end_ns", System.nanoTime());
                    failed(line, e);
                    line.put("broker", client.asked.get().broker);
                }
                line.put("server", client.asked.get().server).put("tries", client.asked.get().tries);
                write(line);
            }
        } catch (Throwable e) {
            e.printStackTrace();
            fail("user " + user + " of " + op + " ended");
        }
    }

    private static void failed(Line line, Exception error) {
        List<String> kinds = new ArrayList<>();
        Integer code = null;
        String remark = null; // of the innermost error: the texts of outer errors contain durations and addresses
        for (Throwable e = error; e != null && kinds.size() < 5; e = e.getCause()) {
            kinds.add(e.getClass().getSimpleName());
            remark = e.getMessage();
            if (code == null && e instanceof MQBrokerException) {
                code = ((MQBrokerException) e).getResponseCode();
            } else if (code == null && e instanceof MQClientException && ((MQClientException) e).getResponseCode() > 0) {
                code = ((MQClientException) e).getResponseCode();
            }
        }
        line.put("errors", kinds).put("code", code).put("remark", remark);
    }

    /** Adds a route to the line: brokers that have queues and an address, and the largest number of their queues. */
    private static void shown(Line line, TopicRouteData route) {
        TreeSet<String> reachable = new TreeSet<>();
        for (BrokerData data : route.getBrokerDatas()) {
            if (!data.getBrokerAddrs().isEmpty()) {
                reachable.add(data.getBrokerName());
            }
        }
        List<String> brokers = new ArrayList<>();
        Integer queues = null;
        for (QueueData data : route.getQueueDatas()) {
            if (reachable.contains(data.getBrokerName())) {
                brokers.add(data.getBrokerName());
                queues = queues == null ? data.getReadQueueNums() : Math.max(queues, data.getReadQueueNums());
            }
        }
        line.put("brokers", brokers).put("queues", queues);
    }

    /** Records each change of the producers' route tables, and reads the end of the load when its file exists. */
    private void watch() {
        String[] topics = words("observed");
        TopicRouteData[][] before = new TopicRouteData[producers.size()][topics.length];
        long[][] unseen = new long[producers.size()][topics.length];
        Path end = Path.of(config.getProperty("end"));
        long lingerNs = Long.parseLong(config.getProperty("linger_ns"));
        long periodNs = Long.parseLong(config.getProperty("watch_ns"));
        try {
            for (long round = 0; endNs == Long.MAX_VALUE || System.nanoTime() - endNs < lingerNs; round++) {
                for (Client client : producers) {
                    for (int place = 0; place < topics.length; place++) {
                        long beginNs = System.nanoTime();
                        TopicRouteData route = client.instance.getTopicRouteTable().get(topics[place]);
                        TopicRouteData last = before[client.index][place];
                        if (route != null && (last == null || (route != last && !route.equals(last)))) {
                            Line line = new Line("view").put("client", client.index).put("topic", topics[place]);
                            shown(line, route);
                            line.put("unseen_ns", last == null ? null : unseen[client.index][place]);
                            write(line.put("seen_ns", System.nanoTime()));
                        }
                        before[client.index][place] = route == null ? last : route;
                        unseen[client.index][place] = beginNs;
                    }
                }
                if (round % 10 == 0) {
                    synchronized (output) {
                        output.flush();
                    }
                    if (Files.exists(end)) {
                        endNs = Long.parseLong(Files.readString(end).strip());
                    }
                }
                LockSupport.parkNanos(periodNs);
            }
            for (Client client : producers) {
                for (int place = 0; place < topics.length; place++) {
                    if (before[client.index][place] != null) {
                        Line line = new Line("end").put("client", client.index).put("topic", topics[place]);
                        write(line.put("seen_ns", System.nanoTime()));
                    }
                }
            }
        } catch (Throwable e) {
            e.printStackTrace();
            fail("the watcher ended");
        }
    }

    private void write(Line line) throws IOException {
        synchronized (output) {
            output.write(line.text());
            output.newLine();
        }
    }

    /** Ends the program at once with exit code 3, so that its records are not used. */
    private static void fail(String reason) {
        System.err.println(reason);
        Runtime.getRuntime().halt(3);
    }

    /** A RocketMQ client with its own connections and its own route table. */
    private final class Client {
        final String op;
        final int index;
        final int place;
        final ThreadLocal<Asked> asked = ThreadLocal.withInitial(Asked::new);
        final DefaultMQProducer producer;
        MQClientInstance instance;

        Client(String op, int index, int place, int retries) {
            this.op = op;
            this.index = index;
            this.place = place;
            producer = new DefaultMQProducer("mqbench", new Listening(asked));
            producer.setInstanceName(op + "-" + place);
            producer.setNamesrvAddr(config.getProperty("nameservers." + place % number("sides")));
            producer.setPollNameServerInterval(number("poll_ms"));
            producer.setHeartbeatBrokerInterval(number("heartbeat_ms"));
            producer.setSendMsgTimeout(number("timeout_ms"));
            producer.setRetryTimesWhenSendFailed(retries);
        }

        void start() throws Exception {
            producer.start();
            producer.getDefaultMQProducerImpl().registerSendMessageHook(new Trying(asked));
            instance = producer.getDefaultMQProducerImpl().getMqClientFactory();
            if (op.equals("lookup")) {
                return;
            }
            for (String topic : words("observed")) { // make the client refresh these routes like those of topics that it sends to
                producer.getDefaultMQProducerImpl().getTopicPublishInfoTable().putIfAbsent(topic, new TopicPublishInfo());
            }
            for (String topic : words("topics")) {
                while (!instance.getTopicRouteTable().containsKey(topic)) {
                    Thread.sleep(RETRY_MS);
                    try {
                        instance.updateTopicRouteInfoFromNameServer(topic);
                    } catch (IllegalStateException e) {
                        // no nameserver answers yet
                    }
                }
            }
        }

        TopicRouteData lookUp(String topic) throws Exception {
            return instance.getMQClientAPIImpl().getTopicRouteInfoFromNameServer(topic, number("timeout_ms"));
        }

        SendResult send(String topic, long number, byte[] content) throws Exception {
            Message message = new Message(topic, content);
            message.putUserProperty(NUMBER, Long.toString(number));
            return producer.send(message);
        }
    }

    /** The nameserver and the broker that a thread asked during one operation, and the number of its tries. */
    private static final class Asked {
        String server;
        String broker;
        int tries;
    }

    /** For the thread that sends a route query, notes the nameserver to which the query goes. */
    private static final class Listening implements RPCHook {
        private final ThreadLocal<Asked> asked;

        Listening(ThreadLocal<Asked> asked) {
            this.asked = asked;
        }

        @Override
        public void doBeforeRequest(String addr, RemotingCommand request) {
            if (request.getCode() == GET_ROUTE) {
                asked.get().server = addr;
            }
        }

        @Override
        public void doAfterResponse(String addr, RemotingCommand request, RemotingCommand response) {
        }
    }

    /** For the thread that sends a message, notes each try and the broker to which the try goes. */
    private static final class Trying implements SendMessageHook {
        private final ThreadLocal<Asked> asked;

        Trying(ThreadLocal<Asked> asked) {
            this.asked = asked;
        }

        @Override
        public String hookName() {
            return "mqbench";
        }

        @Override
        public void sendMessageBefore(SendMessageContext context) {
            asked.get().tries++;
            asked.get().broker = context.getMq().getBrokerName();
        }

        @Override
        public void sendMessageAfter(SendMessageContext context) {
        }
    }

    private record Due(long number, long ns, String topic) {
    }

    /** The schedule of one kind of operations; all users that perform this kind share it. */
    private static final class Shared {
        private final List<Due> due;
        private final AtomicInteger taken = new AtomicInteger();

        Shared(List<Due> due) {
            this.due = due;
        }

        Due take() {
            int place = taken.getAndIncrement();
            return place < due.size() ? due.get(place) : null;
        }
    }

    /** One JSON object; null values are left out. */
    private static final class Line {
        private final StringBuilder text = new StringBuilder("{");

        Line(String what) {
            put("what", what);
        }

        Line put(String name, Object value) {
            if (Objects.isNull(value)) {
                return this;
            }
            if (text.length() > 1) {
                text.append(',');
            }
            text.append('"').append(name).append("\":");
            append(value);
            return this;
        }

        private void append(Object value) {
            if (value instanceof Number || value instanceof Boolean) {
                text.append(value);
            } else if (value instanceof List) {
                text.append('[');
                String comma = "";
                for (Object each : (List<?>) value) {
                    text.append(comma);
                    append(each);
                    comma = ",";
                }
                text.append(']');
            } else {
                quote(value.toString());
            }
        }

        private void quote(String value) {
            text.append('"');
            for (char c : value.toCharArray()) {
                if (c == '"' || c == '\\') {
                    text.append('\\').append(c);
                } else if (c < ' ' || Character.isSurrogate(c)) {
                    text.append(String.format("\\u%04x", (int) c));
                } else {
                    text.append(c);
                }
            }
            text.append('"');
        }

        String text() {
            return text + "}";
        }
    }
}
