import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin subcommands one after the other in one JVM, as MQAdminStartup does in one each.
 *
 * Each line of standard input is one command, its arguments between tabs. The answer is a line with the sizes in bytes
 * of what it printed to standard output and to standard error, then both. A command that calls System.exit (wrong
 * options, -h) ends all.
 */
public final class AdminSession {
    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, "UTF-8"));
            System.setErr(new PrintStream(err, true, "UTF-8"));
            forgetCommands();
            MQAdminStartup.main0(line.split("\t"), null);
            System.out.flush();
            System.err.flush();
            answers.print(out.size() + " " + err.size() + "\n");
            answers.write(out.toByteArray());
            answers.write(err.toByteArray());
            answers.flush();
        }
        System.exit(0);
    }

    /** Some commands keep the client with which they ran once, and it is shut down. */
    private static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
