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
 * Runs mqadmin subcommands one after the other in one JVM; Apache's own script starts a JVM for each subcommand.
 *
 * Each line of standard input is one command; tabs separate its arguments. The answer begins with a line of two numbers:
 * the sizes in bytes of the command's standard output and standard error. Then both texts follow. A command that calls
 * System.exit (wrong options, -h) ends the JVM.
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

    /** Empties mqadmin's list of commands: some commands keep their client after its shutdown, and would use it again. */
    private static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
