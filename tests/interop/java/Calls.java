import java.util.Collection;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Calls of Apache's admin client that no mqadmin command makes: "call NAME ... -n NAME-SERVER". Prints what they return, sorted.
 */
final class Calls {
    private static final int TIMEOUT_MS = 10_000;

    private Calls() {
    }

    static void run(String[] words) {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(TIMEOUT_MS);
        admin.setNamesrvAddr(words[words.length - 1]);
        admin.setInstanceName("calls");
        try {
            admin.start();
            System.out.println(shown(called(admin, words)));
        } catch (Exception refusal) {
            System.out.println(refusal);
        } finally {
            admin.shutdown();
        }
    }

    private static Object called(DefaultMQAdminExt admin, String[] words) throws Exception {
        MQClientAPIImpl api = MQClientManager.getInstance().getOrCreateMQClientInstance(admin).getMQClientAPIImpl();
        switch (words[1]) {
            case "subscription":
                SubscriptionData found = admin.querySubscription(words[2], words[3]);
                return found == null ? "none" : found.getTopic() + " " + found.getSubString() + " " + found.getExpressionType();
            case "status":
                return admin.getConsumeStatus(words[2], words[3], words[4].equals("-") ? "" : words[4]);
            case "exporter":
                Exporter.scrape(admin, System.out::println);
                return "done";
            case "dashboard":
                Dashboard.visit(admin, words[2], words[3], System.out::println);
                return "done";
            case "forbidden":
                return admin.updateAndGetGroupReadForbidden(words[2], words[3], words[4], words[5].equals("-") ? null : Boolean.valueOf(words[5]));
            case "resume":
                return admin.resumeCheckHalfMessage(words[2], words[3]);
            case "correction":
                return api.queryCorrectionOffset(words[2], words[3], words[4], null, TIMEOUT_MS);
            default:
                throw new IllegalArgumentException(words[1]);
        }
    }

    private static Object shown(Object value) {
        if (value instanceof Map) {
            Map<Object, Object> sorted = new TreeMap<>();
            ((Map<?, ?>) value).forEach((key, of) -> sorted.put(key, shown(of)));
            return sorted;
        }
        return value instanceof Collection ? new TreeSet<Object>((Collection<?>) value) : value;
    }
}
