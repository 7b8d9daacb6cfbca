import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.broker.schedule.DelayOffsetSerializeWrapper;

/**
 * Reads the tables of config/ as Apache's broker does at its start and prints, for each directory, one line of JSON with
 * what it found. Arguments: directories with topics.json, subscriptionGroup.json, consumerOffset.json, delayOffset.json.
 */
public final class Tables {
    private Tables() {
    }

    public static void main(String[] directories) throws Exception {
        for (String directory : directories) {
            Map<String, Object> found = new TreeMap<>();
            found.put("topics", read(directory, "topics", TopicConfigSerializeWrapper.class).getTopicConfigTable().keySet());
            found.put("groups",
                read(directory, "subscriptionGroup", SubscriptionGroupManager.class).getSubscriptionGroupTable().keySet());
            Map<String, Map<String, Long>> offsets = new TreeMap<>();
            for (Map.Entry<String, ConcurrentMap<Integer, Long>> entry
                : read(directory, "consumerOffset", ConsumerOffsetManager.class).getOffsetTable().entrySet()) {
                offsets.put(entry.getKey(), asText(entry.getValue()));
            }
            found.put("offsets", offsets);
            found.put("delays", asText(read(directory, "delayOffset", DelayOffsetSerializeWrapper.class).getOffsetTable()));
            System.out.println(JSON.toJSONString(found));
        }
    }

    private static Map<String, Long> asText(Map<Integer, Long> table) {
        Map<String, Long> text = new TreeMap<>();
        table.forEach((key, value) -> text.put(key.toString(), value));
        return text;
    }

    private static <T> T read(String directory, String name, Class<T> type) throws Exception {
        String text = new String(Files.readAllBytes(Path.of(directory, "config", name + ".json")), StandardCharsets.UTF_8);
        return RemotingSerializable.fromJson(text, type);
    }
}
