import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** A program's arguments: first the arguments with fixed positions, then NAME=VALUE arguments in any order. */
final class Options {
    private final String[] args;
    private final int fixed;
    private final Map<String, String> named = new HashMap<>();

    Options(String[] args, String... known) {
        this.args = args;
        int index = args.length;
        while (index > 0 && named(args[index - 1], known)) {
            index--;
        }
        fixed = index;
        for (; index < args.length; index++) {
            String[] parts = args[index].split("=", 2);
            named.put(parts[0], parts[1]);
        }
    }

    private static boolean named(String arg, String[] known) {
        for (String name : known) {
            if (arg.startsWith(name + "=")) {
                return true;
            }
        }
        return false;
    }

    String at(int index) {
        return args[index];
    }

    String at(int index, String otherwise) {
        return index < fixed ? args[index] : otherwise;
    }

    int number(int index) {
        return Integer.parseInt(args[index]);
    }

    String get(String name, String otherwise) {
        return named.getOrDefault(name, otherwise);
    }

    /** Returns a hook that signs requests with accessKey and secretKey; null if there is no accessKey. */
    RPCHook hook() {
        String key = get("accessKey", "");
        return key.isEmpty() ? null : new AclClientRPCHook(new SessionCredentials(key, get("secretKey", "")));
    }

    int get(String name, int otherwise) {
        return named.containsKey(name) ? Integer.parseInt(named.get(name)) : otherwise;
    }
}
