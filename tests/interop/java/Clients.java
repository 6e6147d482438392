import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;

/**
 * Runs Producer and PushConsumer many times in one JVM; several runs may be active at the same time.
 *
 * Each line of standard input starts one run: OUTPUT PROGRAM ARGUMENT..., separated by tabs. The run prints to the file
 * OUTPUT. When it has ended, the file OUTPUT.exit has its exit code. The JVM ends when its standard input ends.
 */
public final class Clients {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            String[] words = line.split("\t", -1);
            Thread thread = new Thread(() -> run(words), words[1]);
            thread.setDaemon(true);
            thread.start();
        }
        System.exit(0);
    }

    private static void run(String[] words) {
        int code = 1;
        try (PrintStream out = new PrintStream(new FileOutputStream(words[0]), true, "UTF-8")) {
            String[] args = Arrays.copyOfRange(words, 2, words.length);
            try {
                code = words[1].equals("Producer") ? Producer.run(args, out) : PushConsumer.run(args, out);
            } catch (Throwable e) {
                e.printStackTrace(out);
            }
            Path partial = Path.of(words[0] + ".partial");
            Files.writeString(partial, Integer.toString(code));
            Files.move(partial, Path.of(words[0] + ".exit"), StandardCopyOption.ATOMIC_MOVE);
        } catch (Exception e) {
            e.printStackTrace();
        }
    }
}
