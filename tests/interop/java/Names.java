import java.lang.reflect.Field;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** Prints "CODE name number" for each request code of these jars, and "COMMAND name" for each command of mqadmin. */
public final class Names {
    private static final class Commands extends MQAdminStartup {
        static void print() {
            initCommand();
            for (SubCommand command : SUB_COMMANDS) {
                System.out.println("COMMAND " + command.commandName());
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        for (Field field : RequestCode.class.getDeclaredFields()) {
            System.out.println("CODE " + field.getName() + " " + field.get(null));
        }
        Commands.print();
    }
}
