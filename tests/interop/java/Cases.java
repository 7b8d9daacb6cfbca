import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What Apache's client can do, case by case, many at a time: a round of all, a round in whose middle the master is to be killed
 * (the line "KILL" asks for it), the first round again. Prints "OK round case" or "FAILED round case reason", and "DONE".
 * Arguments: name server, and perhaps the names of the cases to run.
 */
public final class Cases {
    interface Case {
        /** Returns if all is well. */
        void run(Cases cases, String topic) throws Exception;
    }

    static final int QUEUES = 4;
    private static final long PATIENCE_MS = TimeUnit.SECONDS.toMillis(300);
    private static final long POLL_MS = 50;

    final String nameServer;
    final DefaultMQAdminExt admin = new DefaultMQAdminExt("cases");
    final Death death = new Death();

    private Cases(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.out.println("DONE");
            System.exit(0);
        } catch (Exception failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        Cases cases = new Cases(arguments[0]);
        cases.admin.setNamesrvAddr(arguments[0]);
        cases.admin.setPollNameServerInterval(1000);
        cases.admin.start();
        Map<String, Case> all = new LinkedHashMap<>();
        Sending.list(all);
        Consuming.list(all);
        Leaving.list(all);
        Refused.list(all);
        Map<String, Case> through = new LinkedHashMap<>();
        Through.list(through);
        if (arguments.length > 1) {
            List<String> only = List.of(arguments).subList(1, arguments.length);
            all.keySet().retainAll(only);
            through.keySet().retainAll(only);
        }
        for (String address : cases.brokers()) {
            Properties selectors = new Properties();
            selectors.setProperty("enablePropertyFilter", "true");
            cases.admin.updateBrokerConfig(address, selectors);
        }
        cases.finish("before", cases.start("before", all));
        Map<String, Future<?>> running = cases.start("through", through);
        Set<String> topics = new HashSet<>();
        through.keySet().forEach(name -> topics.add(topicOf(name, "through")));
        cases.death.come(cases, topics);
        cases.finish("through", running);
        Through.close();
        cases.finish("after", cases.start("after", all));
    }

    private Map<String, Future<?>> start(String round, Map<String, Case> all) throws Exception {
        ExecutorService pool = Executors.newCachedThreadPool();
        Map<String, Future<?>> running = new LinkedHashMap<>();
        for (Map.Entry<String, Case> item : all.entrySet()) {
            String topic = topicOf(item.getKey(), round);
            makeTopic(topic);
            running.put(item.getKey(), pool.submit((Callable<Void>) () -> {
                long started = System.currentTimeMillis();
                try {
                    item.getValue().run(this, topic);
                } finally {
                    death.ready(topic);
                }
                System.out.println("TOOK " + round + " " + item.getKey() + " " + (System.currentTimeMillis() - started));
                return null;
            }));
        }
        pool.shutdown();
        return running;
    }

    private void finish(String round, Map<String, Future<?>> running) throws InterruptedException {
        for (Map.Entry<String, Future<?>> item : running.entrySet()) {
            try {
                item.getValue().get();
                System.out.println("OK " + round + " " + item.getKey());
            } catch (ExecutionException failure) {
                failure.getCause().printStackTrace();
                String reason = String.valueOf(failure.getCause()).replaceAll("\\s+", " ");
                System.out.println("FAILED " + round + " " + item.getKey() + " " + reason);
            }
        }
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
