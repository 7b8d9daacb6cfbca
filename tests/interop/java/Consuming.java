import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Cases of consumers: order in spite of failures, broadcast, filters, offsets set back, every way to pull. */
final class Consuming {
    private Consuming() {
    }

    static void list(Map<String, Cases.Case> all) {
        all.put("orderlyFailing", Consuming::orderlyFailing);
        all.put("broadcast", Consuming::broadcast);
        all.put("filters", Consuming::filters);
        all.put("reset", Consuming::reset);
        all.put("liteSubscribe", Consuming::liteSubscribe);
        all.put("liteAssign", Consuming::liteAssign);
        all.put("pull", Consuming::pull);
    }

    /** Every third message fails twice before it succeeds; none overtakes it. */
    private static void orderlyFailing(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Clients.numbers(producer, topic, 60);
        Map<String, Integer> tries = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = Clients.push(cases, "group-" + topic);
        Clients.Got got = Clients.orderly(consumer, message -> {
            int number = Integer.parseInt(Clients.text(message));
            return tries.merge(Clients.text(message), 1, Integer::sum) > (number % 3 == 0 ? 2 : 0);
        });
        consumer.subscribe(topic, "*");
        consumer.start();
        Cases.until("all in the end", () -> got.messages.size() >= 60);
        consumer.shutdown();
        Map<Integer, List<Long>> offsets = new HashMap<>();
        got.messages.forEach(item -> offsets.computeIfAbsent(item.getQueueId(), queue -> new ArrayList<>()).add(item.getQueueOffset()));
        offsets.forEach((queue, found) -> {
            Cases.same("offsets of queue " + queue, 15, found.size());
            Cases.same("order of queue " + queue, found.stream().sorted().distinct().toList(), found);
        });
        tries.forEach((number, count) -> Cases.same("tries of " + number, Integer.parseInt(number) % 3 == 0 ? 3 : 1, count));
        producer.shutdown();
    }

    private static void broadcast(Cases cases, String topic) throws Exception {
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<Clients.Got> all = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            DefaultMQPushConsumer consumer = Clients.push(cases, "group-" + topic);
            consumer.setMessageModel(MessageModel.BROADCASTING);
            all.add(Clients.concurrently(consumer));
            consumer.subscribe(topic, "*");
            consumer.start();
            consumers.add(consumer);
        }
        DefaultMQProducer producer = Clients.producer(cases);
        Clients.numbers(producer, topic, 40);
        for (Clients.Got got : all) {
            Cases.until("each gets all", () -> got.bodies().equals(Clients.numbered(0, 40)));
        }
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
    }

    private static void filters(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Set<String> byTag = new TreeSet<>();
        Set<String> bySql = new TreeSet<>();
        for (int number = 0; number < 60; number++) {
            Message message = new Message(topic, "tag" + number % 4, null, Integer.toString(number).getBytes());
            message.putUserProperty("n", Integer.toString(number));
            message.putUserProperty("colour", number % 2 == 0 ? "rot" : "grün");
            Clients.send(producer, message);
            if (number % 4 == 1 || number % 4 == 2) {
                byTag.add(Integer.toString(number));
            }
            if (number >= 10 && number <= 19 && number % 2 != 0 && number % 4 != 3) {
                bySql.add(Integer.toString(number));
            }
        }
        DefaultMQPushConsumer tags = Clients.push(cases, "tags-" + topic);
        DefaultMQPushConsumer sql = Clients.push(cases, "sql-" + topic);
        Clients.Got tagged = Clients.concurrently(tags);
        Clients.Got selected = Clients.concurrently(sql);
        tags.subscribe(topic, "tag1 || tag2");
        sql.subscribe(topic, MessageSelector.bySql("n BETWEEN 10 AND 19 AND colour = 'grün' AND TAGS <> 'tag3'"));
        tags.start();
        sql.start();
        Cases.until("those with the tags", () -> tagged.bodies().containsAll(byTag));
        Cases.until("those that SQL selects", () -> selected.bodies().containsAll(bySql));
        Cases.same("by tag", byTag, tagged.bodies());
        Cases.same("by SQL", bySql, selected.bodies());
        tags.shutdown();
        sql.shutdown();
        producer.shutdown();
    }

    /** By time, of a running group; by queue, of one that sleeps. */
    private static void reset(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Clients.numbers(producer, topic, 20);
        Thread.sleep(20);
        long middle = System.currentTimeMillis();
        Thread.sleep(20);
        for (int number = 20; number < 40; number++) {
            Clients.send(producer, Clients.message(topic, Integer.toString(number)));
        }
        String group = "group-" + topic;
        DefaultMQPushConsumer consumer = Clients.push(cases, group);
        Clients.Got got = Clients.concurrently(consumer);
        consumer.subscribe(topic, "*");
        consumer.start();
        Cases.until("all", () -> got.bodies().equals(Clients.numbered(0, 40)));
        Thread.sleep(1000);
        got.messages.clear();
        cases.admin.resetOffsetByTimestamp(topic, group, middle, true);
        Cases.until("the second half again", () -> got.bodies().containsAll(Clients.numbered(20, 40)));
        Cases.same("again", Clients.numbered(20, 40), got.bodies());
        Thread.sleep(1000);
        consumer.shutdown();
        cases.admin.resetOffsetByQueueId(cases.master(), group, topic, 2, 4);
        DefaultMQPushConsumer second = Clients.push(cases, group);
        Clients.Got rest = Clients.concurrently(second);
        second.subscribe(topic, "*");
        second.start();
        Cases.until("six of queue 2", () -> rest.messages.size() >= 6);
        Set<Long> offsets = new TreeSet<>();
        rest.messages.forEach(item -> offsets.add(item.getQueueId() * 100 + item.getQueueOffset()));
        Cases.same("queue 2 from offset 4", Set.of(204L, 205L, 206L, 207L, 208L, 209L), offsets);
        second.shutdown();
        producer.shutdown();
    }

    private static void poll(DefaultLitePullConsumer consumer, Collection<String> into, int count) throws Exception {
        Cases.until(count + " messages", () -> {
            consumer.poll(200).forEach(message -> into.add(Clients.text(message)));
            return into.size() >= count;
        });
    }

    /** Commits by hand; its successor goes on where it stopped. */
    private static void liteSubscribe(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Clients.numbers(producer, topic, 40);
        DefaultLitePullConsumer first = Clients.pull(cases, "group-" + topic);
        first.setAutoCommit(false);
        first.subscribe(topic, MessageSelector.byTag("*"));
        first.start();
        Set<String> got = new TreeSet<>();
        poll(first, got, 40);
        Cases.same("all", Clients.numbered(0, 40), got);
        first.commit();
        for (MessageQueue queue : first.fetchMessageQueues(topic)) {
            Cases.same("committed of " + queue, 10L, first.committed(queue));
        }
        first.shutdown();
        for (int number = 40; number < 60; number++) {
            Clients.send(producer, Clients.message(topic, Integer.toString(number)));
        }
        DefaultLitePullConsumer second = Clients.pull(cases, "group-" + topic);
        second.subscribe(topic, "*");
        second.start();
        List<String> rest = new ArrayList<>();
        poll(second, rest, 20);
        Cases.same("the rest", Clients.numbered(40, 60), new TreeSet<>(rest));
        second.shutdown();
        producer.shutdown();
    }

    private static void liteAssign(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        SendResult tenth = Clients.numbers(producer, topic, 40).get(9);
        Thread.sleep(20);
        long middle = System.currentTimeMillis();
        Thread.sleep(20);
        Clients.numbers(producer, topic, 40);
        DefaultLitePullConsumer consumer = Clients.pull(cases, "group-" + topic);
        consumer.setAutoCommit(false);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
        Cases.same("queues", Cases.QUEUES, queues.size());
        consumer.assign(queues);
        List<String> got = new ArrayList<>();
        poll(consumer, got, 80);
        MessageQueue queue = queues.stream().filter(item -> item.getQueueId() == 1).findAny().orElseThrow();
        consumer.assign(List.of(queue));
        for (MessageQueue other : queues) {
            Cases.same("offset by time", 10L, consumer.offsetForTimestamp(other, middle));
        }
        consumer.seek(queue, 15);
        Cases.same("from 15", List.of(15L, 16L, 17L, 18L, 19L), offsets(consumer, 5));
        consumer.seekToBegin(queue);
        Cases.same("from the beginning", 20, offsets(consumer, 20).size());
        consumer.seekToEnd(queue);
        Cases.same("from the end", List.of(), offsets(consumer.poll(500)));
        consumer.pause(List.of(queue));
        consumer.seek(queue, 18);
        Cases.same("paused", List.of(), offsets(consumer.poll(500)));
        consumer.resume(List.of(queue));
        Cases.same("resumed", List.of(18L, 19L), offsets(consumer, 2));
        Cases.same("ten was stored", "9", Clients.text(cases.admin.viewMessage(topic, tenth.getOffsetMsgId())));
        consumer.shutdown();
        producer.shutdown();
    }

    private static List<Long> offsets(List<MessageExt> messages) {
        return messages.stream().map(MessageExt::getQueueOffset).toList();
    }

    private static List<Long> offsets(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<Long> found = new ArrayList<>();
        Cases.until(count + " offsets", () -> found.addAll(offsets(consumer.poll(200))) && found.size() >= count);
        return found;
    }

    /** The oldest of the consumers, with all that it can ask a broker. */
    @SuppressWarnings("deprecation")
    private static void pull(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        long before = System.currentTimeMillis();
        Clients.numbers(producer, topic, 40);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("group-" + topic);
        consumer.setNamesrvAddr(cases.nameServer);
        consumer.setInstanceName(Clients.name("old"));
        consumer.start();
        Set<String> got = new TreeSet<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            Cases.until("a queue's end", () -> consumer.maxOffset(queue) == 10L);
            Cases.same("its begin", 0L, consumer.minOffset(queue));
            Cases.same("by time", 0L, consumer.searchOffset(queue, before));
            long earliest = consumer.earliestMsgStoreTime(queue);
            Cases.check("the earliest is of now: " + earliest, earliest >= before && earliest <= System.currentTimeMillis());
            PullResult result = consumer.pullBlockIfNotFound(queue, "*", 0, 32);
            Cases.same("status", PullStatus.FOUND, result.getPullStatus());
            Cases.same("next", 10L, result.getNextBeginOffset());
            result.getMsgFoundList().forEach(message -> got.add(Clients.text(message)));
            Cases.same("beyond the end", PullStatus.OFFSET_ILLEGAL, consumer.pull(queue, "*", 100, 32).getPullStatus());
            Cases.same("at the end", PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", 10, 32).getPullStatus());
            consumer.updateConsumeOffset(queue, 7);
            consumer.getOffsetStore().persist(queue);
            Cases.until("kept", () -> consumer.fetchConsumeOffset(queue, true) == 7L);
        }
        Cases.same("all", Clients.numbered(0, 40), got);
        consumer.shutdown();
        producer.shutdown();
    }
}
