import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Consumer;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.stats.Stats;
import org.apache.rocketmq.remoting.protocol.body.AclInfo;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.UserInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What the pages of RocketMQ's dashboard ask, page by page: clusters, topics with their charts, groups, producers, messages, users and
 * policies. Prints what a page would show. It makes and removes a topic, a group, a user and a policy as its forms do.
 */
final class Dashboard {
    private static final int TIMEOUT_MS = 10_000;
    private static final String MADE = "DashboardMade";
    private static final String USER = "dashboard";

    private final DefaultMQAdminExt admin;
    private final Consumer<String> out;
    private final Map<Long, String> replicas = new TreeMap<>();
    private final String topic;
    private final String group;

    private Dashboard(DefaultMQAdminExt admin, String topic, String group, Consumer<String> out) {
        this.admin = admin;
        this.topic = topic;
        this.group = group;
        this.out = out;
    }

    static void visit(DefaultMQAdminExt admin, String topic, String group, Consumer<String> out) throws Exception {
        Dashboard dashboard = new Dashboard(admin, topic, group, out);
        dashboard.clusters();
        dashboard.topics();
        dashboard.charts();
        dashboard.groups();
        dashboard.messages();
        dashboard.forms();
        dashboard.users();
    }

    private String master() {
        return replicas.get(0L);
    }

    private void clusters() throws Exception {
        for (BrokerData broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            replicas.putAll(broker.getBrokerAddrs());
            out.accept("cluster " + broker.getCluster() + " " + broker.getBrokerName() + " replicas " + broker.getBrokerAddrs().size());
        }
        for (Map.Entry<Long, String> replica : replicas.entrySet()) {
            Map<String, String> runtime = admin.fetchBrokerRuntimeStats(replica.getValue()).getTable();
            for (String name : new String[] {"msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow"}) {
                out.accept("cluster " + name + " " + (Long.parseLong(runtime.get(name)) >= 0));
            }
            out.accept("cluster today " + (Double.parseDouble(runtime.get("getTransferredTps").split(" ")[0]) >= 0));
            String id = admin.getBrokerConfig(replica.getValue()).getProperty("brokerName");
            out.accept("cluster config " + (replica.getKey() == 0 ? "master" : "slave") + " " + id);
        }
    }

    private void topics() throws Exception {
        MQClientAPIImpl api = MQClientManager.getInstance().getOrCreateMQClientInstance(admin).getMQClientAPIImpl();
        for (String name : new TreeSet<>(api.getSystemTopicList(TIMEOUT_MS).getTopicList())) {
            out.accept("system " + name);
        }
        Map<String, TopicConfig> table = admin.getAllTopicConfig(master(), TIMEOUT_MS).getTopicConfigTable();
        for (String name : new TreeSet<>(admin.fetchAllTopicList().getTopicList())) {
            TopicConfig config = table.get(name);
            out.accept("topic " + name + " " + (config == null ? "of the cluster" : config.getTopicMessageType() + " " + config.getPerm()));
        }
        out.accept("topic " + topic + " route " + admin.examineTopicRouteInfo(topic).getQueueDatas());
        out.accept("topic " + topic + " queues " + admin.examineTopicStats(topic).getOffsetTable().size());
        out.accept("topic " + topic + " config " + admin.examineTopicConfig(master(), topic));
        out.accept("topic " + topic + " groups " + new TreeSet<>(admin.queryTopicConsumeByWho(topic).getGroupList()));
    }

    private void charts() throws Exception {
        String[][] wanted = {{Stats.TOPIC_PUT_NUMS, topic}, {Stats.GROUP_GET_NUMS, topic + "@" + group}};
        for (String[] chart : wanted) {
            boolean drawn = admin.viewBrokerStatsData(master(), chart[0], chart[1]).getStatsMinute().getTps() >= 0;
            out.accept("chart " + chart[0] + " " + chart[1] + " " + drawn);
        }
    }

    private void groups() throws Exception {
        Map<String, SubscriptionGroupConfig> table = admin.getAllSubscriptionGroup(master(), TIMEOUT_MS).getSubscriptionGroupTable();
        for (String name : new TreeSet<>(table.keySet())) {
            out.accept("group " + name + " ordered " + table.get(name).isConsumeMessageOrderly());
        }
        out.accept("group " + group + " behind " + admin.examineConsumeStats(group).computeTotalDiff());
        out.accept("group " + group + " here behind " + admin.examineConsumeStats(master(), group, null, TIMEOUT_MS).computeTotalDiff());
        out.accept("group " + group + " config " + admin.examineSubscriptionGroupConfig(master(), group));
        ConsumerConnection online = admin.examineConsumerConnectionInfo(group);
        out.accept("group " + group + " " + online.getConsumeType() + " " + online.getMessageModel() + " " + online.computeMinVersion());
        for (Connection member : online.getConnectionSet()) {
            boolean threads = admin.getConsumerRunningInfo(group, member.getClientId(), true).getJstack() != null;
            out.accept("group " + group + " member " + member.getLanguage() + " threads " + threads);
        }
        int producers = admin.examineProducerConnectionInfo("CLIENT_INNER_PRODUCER", topic).getConnectionSet().size();
        out.accept("producers " + (producers > 0));
    }

    private void messages() throws Exception {
        QueryResult found = admin.queryMessage(topic, "key3", 64, 0, Long.MAX_VALUE);
        for (MessageExt message : found.getMessageList()) {
            out.accept("message " + message.getKeys() + " " + message.getQueueId() + " " + message.getQueueOffset() + " " + message.getTags());
            MessageExt viewed = admin.viewMessage(topic, message.getMsgId());
            out.accept("message by id " + new String(viewed.getBody(), java.nio.charset.StandardCharsets.UTF_8));
            admin.messageTrackDetail(viewed).forEach(track -> out.accept("message track " + track.getConsumerGroup() + " " + track.getTrackType()));
        }
    }

    private void forms() throws Exception {
        TopicConfig made = new TopicConfig(MADE, 2, 3, 6);
        admin.createAndUpdateTopicConfig(master(), made);
        out.accept("form " + admin.examineTopicConfig(master(), MADE));
        SubscriptionGroupConfig settings = new SubscriptionGroupConfig();
        settings.setGroupName(MADE);
        settings.setRetryMaxTimes(3);
        admin.createAndUpdateSubscriptionGroupConfig(master(), settings);
        out.accept("form " + admin.examineSubscriptionGroupConfig(master(), MADE));
        admin.deleteSubscriptionGroup(master(), MADE, true);
        admin.deleteTopicInBroker(Collections.singleton(master()), MADE);
        admin.deleteTopicInNameServer(new TreeSet<>(admin.getNameServerAddressList()), MADE);
        out.accept("form done " + admin.getAllTopicConfig(master(), TIMEOUT_MS).getTopicConfigTable().containsKey(MADE));
    }

    private void users() throws Exception {
        admin.createUser(master(), UserInfo.of(USER, "secret", "Normal"));
        admin.updateUser(master(), UserInfo.of(USER, "changed", "Super"));
        show(admin.listUser(master(), ""));
        List<String> actions = Collections.singletonList("Pub");
        AclInfo policy = AclInfo.of("User:" + USER, Collections.singletonList("Topic:" + topic), actions, null, "Allow");
        admin.createAcl(master(), policy);
        admin.updateAcl(master(), AclInfo.of("User:" + USER, Collections.singletonList("Topic:" + topic), actions, null, "Deny"));
        for (AclInfo found : admin.listAcl(master(), "", "")) {
            found.getPolicies().forEach(item -> item.getEntries().forEach(entry -> out.accept("policy " + found.getSubject() + " "
                + entry.getResource() + " " + entry.getActions() + " " + entry.getDecision())));
        }
        admin.deleteAcl(master(), "User:" + USER, "");
        admin.deleteUser(master(), USER);
        List<UserInfo> left = admin.listUser(master(), "");
        out.accept("users left " + (left == null ? 0 : left.size()));
    }

    private void show(List<UserInfo> users) {
        users.forEach(user -> out.accept("user " + user.getUsername() + " " + user.getUserType() + " " + user.getUserStatus()));
    }
}
