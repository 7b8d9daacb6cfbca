import java.io.File;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** A group's second member comes and goes: in order, and by kill -9. */
final class Leaving {
    private Leaving() {
    }

    static void list(Map<String, Cases.Case> all) {
        all.put("rebalance", Leaving::rebalance);
    }

    private static void rebalance(Cases cases, String topic) throws Exception {
        String group = "group-" + topic;
        DefaultMQProducer producer = Clients.producer(cases);
        DefaultMQPushConsumer first = Clients.push(cases, group);
        Clients.Got got = Clients.concurrently(first);
        first.subscribe(topic, "*");
        first.start();
        Cases.until("the first has all queues", () -> sendsReach(producer, topic, got, Cases.QUEUES));

        DefaultMQPushConsumer second = Clients.push(cases, group);
        Clients.Got other = Clients.concurrently(second);
        second.subscribe(topic, "*");
        second.start();
        Cases.until("they share", () -> sendsReach(producer, topic, got, 2) && !other.messages.isEmpty());
        second.shutdown();
        Cases.until("the first has all again", () -> sendsReach(producer, topic, got, Cases.QUEUES));

        File said = File.createTempFile("second", ".out");
        said.deleteOnExit();
        Process killed = new ProcessBuilder(command(cases, topic, group)).redirectOutput(said).start();
        try {
            Cases.until("they share", () -> sendsReach(producer, topic, got, 2) && said.length() > 100);
        } finally {
            killed.destroyForcibly().waitFor();
        }
        long killedAt = System.currentTimeMillis();
        Cases.until("the first has all again", () -> sendsReach(producer, topic, got, Cases.QUEUES));
        System.out.println("NOTE after a consumer's kill -9 the other had its queues in ms: " + (System.currentTimeMillis() - killedAt));
        first.shutdown();
        producer.shutdown();
    }

    /** Sends one message to each queue: how many of them the consumer gets within a moment, is it that count? */
    private static boolean sendsReach(DefaultMQProducer producer, String topic, Clients.Got got, int count) throws Exception {
        got.messages.clear();
        for (int queue = 0; queue < Cases.QUEUES; queue++) {
            int wanted = queue;
            producer.send(Clients.message(topic, "0"), (queues, message, argument) -> queues.get(wanted), null);
        }
        Thread.sleep(300);
        Set<Integer> queues = new HashSet<>();
        for (MessageExt message : got.messages) {
            queues.add(message.getQueueId());
        }
        return queues.size() == count;
    }

    /** Another JVM with the same class path and settings that runs Work. */
    private static List<String> command(Cases cases, String topic, String group) {
        List<String> found = new ArrayList<>();
        found.add(ProcessHandle.current().info().command().orElseThrow());
        for (String option : ManagementFactory.getRuntimeMXBean().getInputArguments()) {
            if (!option.startsWith("-Xm")) {
                found.add(option);
            }
        }
        found.addAll(List.of("-Xmx64m", "-cp", System.getProperty("java.class.path"), "Work"));
        found.addAll(List.of(cases.nameServer, topic, "concurrently", group, "0", "16", "tag:*"));
        return found;
    }
}
