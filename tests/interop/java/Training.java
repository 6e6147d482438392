import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs a nameserver, a broker, mqadmin, a producer and a consumer for a moment, so that the JVM can write the classes of all of them
 * into one archive when it ends.
 *
 * Arguments: FOLDER NAMESRV BROKER. The files namesrv.properties and broker.properties in FOLDER have the two addresses.
 */
public final class Training {
    private static final String TOPIC = "Training";

    public static void main(String[] args) throws Exception {
        String namesrv = args[1];
        NamesrvStartup.main(new String[] {"-c", args[0] + "/namesrv.properties"});
        BrokerStartup.main(new String[] {"-c", args[0] + "/broker.properties"});
        for (String command : new String[] {"updateTopic -b " + args[2] + " -t " + TOPIC, "clusterList", "topicRoute -t " + TOPIC}) {
            MQAdminStartup.main0((command + " -n " + namesrv).split(" "), null);
        }
        int tries = 0;
        while (Producer.run(new String[] {namesrv, TOPIC, "1", "64", "1"}, System.out) != 0) {
            if (++tries == 120) {
                throw new IllegalStateException("the broker took no message");
            }
            Thread.sleep(500); // the broker of 5.3.3 registers some seconds after its start
        }
        int code = PushConsumer.run(new String[] {namesrv, TOPIC, "training", "1", "60"}, System.out);
        Runtime.getRuntime().halt(code); // an orderly end of the broker would take ten seconds
    }
}
