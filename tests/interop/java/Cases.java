import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What Apache's client can do, case by case, many at a time: a round of all, traffic during which the master is to be killed
 * (the line "KILL" asks for it), another round. Prints "OK round case" or "FAILED round case reason", and "DONE".
 * Arguments: name server, and perhaps the names of the cases to run.
 */
public final class Cases {
    interface Case {
        /** Returns if all is well. */
        void run(Cases cases, String topic) throws Exception;
    }

    static final int QUEUES = 4;
    private static final long PATIENCE_MS = TimeUnit.SECONDS.toMillis(90);
    private static final long POLL_MS = 50;

    final String nameServer;
    final DefaultMQAdminExt admin = new DefaultMQAdminExt("cases");

    private Cases(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] arguments) throws Exception {
        Cases cases = new Cases(arguments[0]);
        cases.admin.setNamesrvAddr(arguments[0]);
        cases.admin.setPollNameServerInterval(1000);
        cases.admin.start();
        Map<String, Case> all = new LinkedHashMap<>();
        Sending.list(all);
        Consuming.list(all);
        Leaving.list(all);
        for (int place = 1; place < arguments.length; place++) {
            String name = arguments[place];
            Case only = all.get(name);
            all.keySet().removeIf(other -> !other.equals(name));
            all.put(name, only);
        }
        for (String address : cases.brokers()) {
            Properties selectors = new Properties();
            selectors.setProperty("enablePropertyFilter", "true");
            cases.admin.updateBrokerConfig(address, selectors);
        }
        cases.round("before", all);
        cases.round("through", Map.of("traffic", Traffic::run));
        cases.round("after", all);
        System.out.println("DONE");
        System.exit(0);
    }

    private void round(String round, Map<String, Case> all) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(all.size());
        Map<String, Future<?>> running = new LinkedHashMap<>();
        for (Map.Entry<String, Case> item : all.entrySet()) {
            String topic = topicOf(item.getKey(), round);
            makeTopic(topic);
            running.put(item.getKey(), pool.submit((Callable<Void>) () -> {
                long started = System.currentTimeMillis();
                item.getValue().run(this, topic);
                System.out.println("TOOK " + round + " " + item.getKey() + " " + (System.currentTimeMillis() - started));
                return null;
            }));
        }
        for (Map.Entry<String, Future<?>> item : running.entrySet()) {
            try {
                item.getValue().get();
                System.out.println("OK " + round + " " + item.getKey());
            } catch (java.util.concurrent.ExecutionException failure) {
                failure.getCause().printStackTrace();
                String reason = String.valueOf(failure.getCause()).replaceAll("\\s+", " ");
                System.out.println("FAILED " + round + " " + item.getKey() + " " + reason);
            }
        }
        pool.shutdown();
    }

    /** All characters that a name may have, in one of them. */
    private static String topicOf(String name, String round) {
        return name.equals("unicode") ? "Uni%|_-09Aa-" + round : "Case-" + name + "-" + round;
    }

    List<String> brokers() throws Exception {
        List<String> found = new ArrayList<>();
        ClusterInfo cluster = admin.examineBrokerClusterInfo();
        for (BrokerData group : cluster.getBrokerAddrTable().values()) {
            found.addAll(group.getBrokerAddrs().values());
        }
        return found;
    }

    String master() throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().getBrokerAddrs().get(0L);
    }

    void makeTopic(String topic) throws Exception {
        String master = master();
        admin.createAndUpdateTopicConfig(master, new TopicConfig(topic, QUEUES, QUEUES, 6));
        until("topic " + topic + " has a route", () -> {
            try {
                return !admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty();
            } catch (org.apache.rocketmq.client.exception.MQClientException notYet) {
                return false;
            }
        });
    }

    static void until(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.call()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("not in time: " + what);
            }
            Thread.sleep(POLL_MS);
        }
    }

    static void same(String what, Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new IllegalStateException(what + ": expected " + expected + ", found " + found);
        }
    }

    static void check(String what, boolean holds) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }
}
