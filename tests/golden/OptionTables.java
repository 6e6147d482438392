import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.List;
import org.apache.commons.cli.Option;
import org.apache.commons.cli.OptionGroup;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** Prints the options of mqnamesrv, mqbroker and each mqadmin subcommand: program, alias, short name, long name, argument. */
public final class OptionTables {
    public static void main(String[] args) throws Exception {
        print("mqnamesrv", null, declared(NamesrvStartup.class));
        print("mqbroker", null, declared(BrokerStartup.class));
        MQAdminStartup.initCommand();
        for (Object command : commands()) {
            SubCommand sub = (SubCommand) command;
            Options options = sub.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
            print("mqadmin " + sub.commandName(), sub.commandAlias(), options);
        }
        System.exit(0);
    }

    /** Returns mqadmin's list of commands; its field is found by type, because its name differs between 4.x and 5.x. */
    private static List<?> commands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                return (List<?>) field.get(null);
            }
        }
        throw new IllegalStateException("MQAdminStartup has no list of commands");
    }

    private static Options declared(Class<?> startup) throws Exception {
        Method build = startup.getDeclaredMethod("buildCommandlineOptions", Options.class);
        build.setAccessible(true);
        return (Options) build.invoke(null, ServerUtil.buildCommandlineOptions(new Options()));
    }

    private static void print(String program, String alias, Options options) {
        for (Object each : options.getOptions()) {
            Option option = (Option) each;
            OptionGroup group = options.getOptionGroup(option);
            boolean required = option.isRequired() || group != null && group.isRequired();
            System.out.println(String.join("\t", "option", program, alias == null ? "" : alias,
                option.getOpt() == null ? "" : option.getOpt(), option.getLongOpt() == null ? "" : option.getLongOpt(),
                String.valueOf(option.hasArg()), String.valueOf(required)));
        }
    }
}
