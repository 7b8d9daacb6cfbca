import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin without a JVM for each command. Standard input has one command a line, its words Base64 with blanks between; "call" is for
 * {@link Calls}. Prints
 * "DONE out err" for each: what the command wrote, Base64, "-" for nothing.
 */
public final class Admin {
    private static final int WATCH_MS = 50;

    private static final class Commands extends MQAdminStartup {
        static void run(String[] words) {
            SUB_COMMANDS.clear(); // a command keeps its client, which is shut down
            main0(words, null);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        PrintStream err = System.err;
        hurry(Thread.currentThread());
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            for (int place = 0; place < words.length; place++) {
                words[place] = new String(Base64.getDecoder().decode(words[place]), StandardCharsets.UTF_8);
            }
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            ByteArrayOutputStream complained = new ByteArrayOutputStream();
            System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
            if (words[0].equals("call")) {
                Calls.run(words);
            } else {
                Commands.run(words);
            }
            System.setOut(out);
            System.setErr(err);
            out.println("DONE " + packed(said) + " " + packed(complained));
        }
    }

    /** The end of a client waits up to 3 s for a thread that polls for events with that time-out: wake it. */
    private static void hurry(Thread commands) {
        Thread watch = new Thread(() -> {
            while (true) {
                try {
                    Thread.sleep(WATCH_MS);
                } catch (InterruptedException end) {
                    return;
                }
                for (StackTraceElement frame : commands.getStackTrace()) {
                    if (frame.getClassName().equals(ServiceThread.class.getName()) && frame.getMethodName().equals("shutdown")) {
                        wake();
                        break;
                    }
                }
            }
        });
        watch.setDaemon(true);
        watch.start();
    }

    private static void wake() {
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().startsWith("NettyEventExecutor")) {
                thread.interrupt();
            }
        }
    }

    private static String packed(ByteArrayOutputStream bytes) {
        return bytes.size() == 0 ? "-" : Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
