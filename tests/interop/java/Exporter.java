import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Consumer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.stats.Stats;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.body.BrokerStatsData;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.body.ProducerInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What RocketMQ's Prometheus exporter asks at each scrape, and needs to be able to read, but for brokerVersion, which Apache's broker
 * of 5.4.0 does not tell. One line for each series that it would show:
 * the name, its labels, and the value where that does not depend on the moment.
 */
final class Exporter {
    private static final String[] LONGS = {
        "msgPutTotalTodayNow", "msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgGetTotalTodayNow",
        "msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "sendThreadPoolQueueHeadWaitTimeMills",
        "queryThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize",
        "pullThreadPoolQueueSize", "sendThreadPoolQueueSize", "queryThreadPoolQueueCapacity", "sendThreadPoolQueueCapacity",
        "pullThreadPoolQueueCapacity", "bootTimestamp", "commitLogMinOffset", "commitLogMaxOffset", "dispatchMaxBuffer",
        "pageCacheLockTimeMills", "getMessageEntireTimeMax", "putMessageTimesTotal",
        "startAcceptSendRequestTimeStamp", "putMessageEntireTimeMax", "earliestMessageTimeStamp",
        "remainTransientStoreBufferNumbs", "dispatchBehindBytes", "putMessageSizeTotal"
    };
    private static final String[] DOUBLES = {"consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize"};
    private static final String[] RATES = {"putTps", "getMissTps", "getTransferredTps", "getTotalTps", "getFoundTps"};

    private final DefaultMQAdminExt admin;
    private final Consumer<String> out;
    private final Set<String> masters = new TreeSet<>();

    private Exporter(DefaultMQAdminExt admin, Consumer<String> out) {
        this.admin = admin;
        this.out = out;
    }

    static void scrape(DefaultMQAdminExt admin, Consumer<String> out) throws Exception {
        Exporter exporter = new Exporter(admin, out);
        exporter.brokers();
        exporter.producers();
        for (String topic : new TreeSet<>(admin.fetchAllTopicList().getTopicList())) {
            exporter.topic(topic);
        }
    }

    private void brokers() throws Exception {
        ClusterInfo cluster = admin.examineBrokerClusterInfo();
        for (BrokerData broker : cluster.getBrokerAddrTable().values()) {
            for (Map.Entry<Long, String> replica : broker.getBrokerAddrs().entrySet()) {
                runtime(replica.getKey() == 0, admin.fetchBrokerRuntimeStats(replica.getValue()).getTable());
            }
            String master = broker.getBrokerAddrs().get(0L);
            masters.add(master);
            for (String name : new String[] {Stats.BROKER_PUT_NUMS, Stats.BROKER_GET_NUMS}) {
                rate(master, name, broker.getCluster());
            }
        }
    }

    private void runtime(boolean isMaster, HashMap<String, String> table) {
        String of = isMaster ? "master" : "slave";
        for (String name : LONGS) {
            out.accept("runtime " + of + " " + name + (Long.parseLong(table.get(name)) < Long.MAX_VALUE ? " read" : ""));
        }
        for (String name : DOUBLES) {
            out.accept("runtime " + of + " " + name + (Double.isNaN(Double.parseDouble(table.get(name))) ? "" : " read"));
        }
        for (String name : RATES) {
            for (String part : table.get(name).split(" ")) {
                out.accept("runtime " + of + " " + name + (Double.parseDouble(part) >= 0 ? " read" : " negative"));
                break; // Apache's brokers give one to three windows
            }
        }
        out.accept("runtime " + of + " remainHowManyDataToFlush " + (Double.parseDouble(table.get("remainHowManyDataToFlush").split(" ")[0]) >= 0));
        for (String part : table.get("putMessageDistributeTime").trim().split(" ")) {
            String[] pair = part.split(":");
            out.accept("runtime " + of + " distribute " + pair[0] + (Integer.parseInt(pair[1]) >= 0 ? " read" : ""));
        }
        String[] capacities = table.get("commitLogDirCapacity").split(" ");
        out.accept("runtime " + of + " capacity " + (Double.parseDouble(capacities[2]) > 0) + (Double.parseDouble(capacities[6]) > 0));
        out.accept("runtime " + of + " " + table.get("brokerVersionDesc") + (table.get("runtime").startsWith("[ 0 days, 0 hours") ? " runs" : ""));
    }

    private void producers() throws Exception {
        for (String master : masters) {
            Map<String, java.util.List<ProducerInfo>> found = admin.getAllProducerInfo(master).getData();
            for (Map.Entry<String, java.util.List<ProducerInfo>> group : found.entrySet()) {
                for (ProducerInfo producer : group.getValue()) {
                    out.accept("producer " + group.getKey() + " " + producer.getLanguage() + " " + producer.getVersion());
                }
            }
        }
    }

    private void topic(String topic) throws Exception {
        Map<MessageQueue, TopicOffset> queues = admin.examineTopicStats(topic).getOffsetTable();
        long end = 0;
        boolean isUsed = false;
        for (TopicOffset offset : queues.values()) {
            end += offset.getMaxOffset() - offset.getMinOffset();
            isUsed |= offset.getLastUpdateTimestamp() > 0;
        }
        out.accept("topic " + topic + " messages " + end + " queues " + queues.size() + (isUsed ? " used" : ""));
        String master = admin.examineTopicRouteInfo(topic).getBrokerDatas().get(0).getBrokerAddrs().get(0L);
        rate(master, Stats.TOPIC_PUT_NUMS, topic);
        rate(master, Stats.TOPIC_PUT_SIZE, topic);
        for (String group : new TreeSet<>(admin.queryTopicConsumeByWho(topic).getGroupList())) {
            group(master, topic, group);
        }
    }

    private void group(String master, String topic, String group) {
        String key = topic + "@" + group;
        rate(master, Stats.GROUP_GET_NUMS, key);
        rate(master, Stats.GROUP_GET_SIZE, key);
        rate(master, Stats.SNDBCK_PUT_NUMS, key);
        try {
            ConsumerConnection online = admin.examineConsumerConnectionInfo(group);
            out.accept("group " + key + " members " + online.getConnectionSet().size() + " " + online.getMessageModel());
            for (Connection member : online.getConnectionSet()) {
                ConsumerRunningInfo info = admin.getConsumerRunningInfo(group, member.getClientId(), false);
                info.getStatusTable().keySet().forEach(name -> out.accept("group " + key + " client of " + name));
                info.getStatusTable().values().forEach(status -> {
                    if (status.getConsumeRT() < 0) {
                        throw new IllegalStateException("a negative time");
                    }
                });
            }
        } catch (Exception offline) {
            out.accept("group " + key + " members 0: " + first(offline));
        }
        try {
            ConsumeStats stats = admin.examineConsumeStats(group, topic);
            long consumed = 0;
            for (OffsetWrapper offset : stats.getOffsetTable().values()) {
                consumed += offset.getConsumerOffset();
            }
            out.accept("group " + key + " behind " + stats.computeTotalDiff() + " at " + consumed);
        } catch (Exception unknown) {
            out.accept("group " + key + " behind: " + first(unknown));
        }
    }

    /** A rate is shown if it was there, whatever it is. */
    private void rate(String master, String name, String key) {
        try {
            BrokerStatsData data = admin.viewBrokerStatsData(master, name, key);
            double[] read = {
                data.getStatsMinute().getTps(), data.getStatsHour().getTps(), data.getStatsDay().getTps(),
                data.getStatsMinute().getSum(), data.getStatsMinute().getAvgpt()
            };
            out.accept("rate " + name + " " + key + " " + read.length + " values");
        } catch (Exception absent) {
            out.accept("rate " + name + " " + key + ": " + first(absent));
        }
    }

    private static String first(Exception refusal) {
        return refusal.getMessage().split("\n")[0];
    }
}
