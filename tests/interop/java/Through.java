import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.function.IntFunction;
import java.util.function.IntPredicate;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;

/** Uses of the client with the master's death in their middle: what was sent, set and stored before it holds after it. */
final class Through {
    private static final int MIB = 1024 * 1024;
    private static final int PART = 40;
    private static final int PAUSE_MS = 20;
    private static final Queue<DefaultMQPushConsumer> STARTED = new ConcurrentLinkedQueue<>();

    private Through() {
    }

    static void list(Map<String, Cases.Case> all) {
        all.put("traffic", Traffic::run);
        all.put("oneway", Through::oneway);
        all.put("deadLetters", Through::deadLetters);
        all.put("filters", Through::filters);
        all.put("reset", Through::reset);
        all.put("query", Through::query);
        all.put("big", Through::big);
        all.put("unicode", Through::unicode);
        all.put("lite", Through::lite);
        all.put("shared", Through::shared);
    }

    /** Ends the consumers of all cases. */
    static void close() {
        STARTED.forEach(DefaultMQPushConsumer::shutdown);
    }

    /** Tries until it is acknowledged. */
    private static SendResult send(DefaultMQProducer producer, Message message) throws Exception {
        List<SendResult> found = new ArrayList<>();
        Cases.until("an acknowledgement", () -> {
            try {
                found.add(producer.send(message));
            } catch (MQClientException | MQBrokerException | RemotingException again) {
                return false;
            }
            return found.get(found.size() - 1).getSendStatus() == SendStatus.SEND_OK;
        });
        return found.get(found.size() - 1);
    }

    /** One after the other, each until it is acknowledged: a part, more through the death, a part after it. Returns how many. */
    private static int sendThrough(Cases cases, String topic, int part, IntFunction<Message> make) throws Exception {
        return sendThrough(cases, topic, part, make, () -> true);
    }

    /** The death may come when `ready` says so. */
    private static int sendThrough(
        Cases cases, String topic, int part, IntFunction<Message> make, Callable<Boolean> ready
    ) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        producer.setSendMsgTimeout(3000);
        producer.setCompressMsgBodyOverHowmuch(8 * MIB);
        int number = 0;
        for (; number < part; number++) {
            send(producer, make.apply(number));
        }
        Cases.until("what is to be before the death", ready);
        cases.death.awaitComing(topic);
        for (int after = 0; after < part; number++) {
            after += cases.death.isOver() ? 1 : 0;
            send(producer, make.apply(number));
            Thread.sleep(PAUSE_MS);
        }
        producer.shutdown();
        return number;
    }

    private static Clients.Got consumer(Cases cases, String group, String topic, MessageSelector selector) throws Exception {
        DefaultMQPushConsumer consumer = Clients.push(cases, group);
        Clients.Got got = Clients.concurrently(consumer);
        consumer.subscribe(topic, selector);
        consumer.start();
        STARTED.add(consumer);
        return got;
    }

    /** Exactly these, however often. */
    private static void gets(String who, Clients.Got got, Set<String> bodies) throws Exception {
        Cases.until(who + ": " + bodies.size() + " messages", () -> got.bodies().containsAll(bodies));
        Cases.same(who, bodies, got.bodies());
    }

    private static Set<String> those(int count, IntPredicate wanted) {
        Set<String> found = new TreeSet<>();
        for (int number = 0; number < count; number++) {
            if (wanted.test(number)) {
                found.add(Integer.toString(number));
            }
        }
        return found;
    }

    /**
     * Nothing that an acknowledged message followed on its connection is lost, nothing comes twice or in parts, and
     * after the first acknowledgement of the new master all arrive again.
     */
    private static void oneway(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Set<String> kept = new TreeSet<>();
        Set<String> sent = new TreeSet<>();
        for (int number = 0; number < 100; number++) {
            producer.sendOneway(Clients.message(topic, "before" + number));
            kept.add("before" + number);
        }
        send(producer, Clients.message(topic, "before"));
        cases.death.awaitComing(topic);
        for (int number = 0; !cases.death.isOver(); number++) {
            try {
                producer.sendOneway(Clients.message(topic, "through" + number));
            } catch (MQClientException | RemotingException nobodyThere) {
                Thread.sleep(PAUSE_MS);
            }
            sent.add("through" + number);
            Thread.sleep(PAUSE_MS);
        }
        send(producer, Clients.message(topic, "after"));
        for (int number = 0; number < 100; number++) {
            producer.sendOneway(Clients.message(topic, "after" + number));
            kept.add("after" + number);
        }
        send(producer, Clients.message(topic, "end"));
        kept.addAll(List.of("before", "after", "end"));
        sent.addAll(kept);
        Clients.Got got = consumer(cases, "group-" + topic, topic, MessageSelector.byTag("*"));
        Cases.until("all that must be there", () -> got.bodies().containsAll(kept));
        Cases.check("nothing else", sent.containsAll(got.bodies()));
        Set<String> places = new HashSet<>();
        got.messages.forEach(message -> places.add(message.getQueueId() + " " + message.getQueueOffset()));
        Cases.same("places in queues", got.bodies().size(), places.size());
        System.out.println("NOTE oneway through the master's death: " + (sent.size() - got.bodies().size()) + " of " + sent.size() + " lost");
        producer.shutdown();
    }

    /** Every third message fails always: it comes three times and then lies among the dead letters, and no other does. */
    private static void deadLetters(Cases cases, String topic) throws Exception {
        int patience = 2;
        String group = "group-" + topic;
        cases.makeTopic("%RETRY%" + group); // the consumer looks for it when it starts, and then each 20 s
        DefaultMQPushConsumer consumer = Clients.push(cases, group);
        consumer.setMaxReconsumeTimes(patience);
        Map<String, Set<Integer>> tries = new ConcurrentHashMap<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            boolean done = true;
            for (MessageExt message : messages) {
                String body = Clients.text(message);
                tries.computeIfAbsent(body, number -> new ConcurrentSkipListSet<>()).add(message.getReconsumeTimes());
                done &= Integer.parseInt(body) % 3 != 0;
            }
            return done ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.subscribe(topic, "*");
        consumer.start();
        Callable<Boolean> someAreDead = () -> endOf(cases, "%DLQ%" + group) >= 4;
        int count = sendThrough(cases, topic, PART, number -> Clients.message(topic, Integer.toString(number)), someAreDead);
        Set<String> dead = those(count, number -> number % 3 == 0);
        Clients.Got letters = consumer(cases, "undertaker-" + topic, "%DLQ%" + group, MessageSelector.byTag("*"));
        gets("dead letters", letters, dead);
        Cases.until("all others", () -> tries.size() == count);
        tries.forEach((body, times) ->
            Cases.same("tries of " + body, dead.contains(body) ? Set.of(0, 1, 2) : Set.of(0), Set.copyOf(times)));
        consumer.shutdown();
    }

    /** How many messages a topic has had. */
    private static long endOf(Cases cases, String topic) throws Exception {
        try {
            return cases.admin.examineTopicStats(topic).getOffsetTable().values().stream().mapToLong(row -> row.getMaxOffset()).sum();
        } catch (MQClientException | MQBrokerException notYet) {
            return 0;
        }
    }

    private static void filters(Cases cases, String topic) throws Exception {
        Clients.Got tags = consumer(cases, "tags-" + topic, topic, MessageSelector.byTag("tag1 || tag2"));
        String selector = "n > 4 AND colour = 'grün' AND TAGS <> 'tag3'";
        Clients.Got sql = consumer(cases, "sql-" + topic, topic, MessageSelector.bySql(selector));
        int count = sendThrough(cases, topic, PART, number -> {
            Message message = new Message(topic, "tag" + number % 4, null, Integer.toString(number).getBytes());
            message.putUserProperty("n", Integer.toString(number));
            message.putUserProperty("colour", number % 2 == 0 ? "rot" : "grün");
            return message;
        });
        gets("by tag", tags, those(count, number -> number % 4 == 1 || number % 4 == 2));
        gets("by SQL", sql, those(count, number -> number > 4 && number % 4 == 1));
        // the log of the dead master is read from its begin by those who come now
        Clients.Got late = consumer(cases, "late-" + topic, topic, MessageSelector.bySql(selector));
        gets("by SQL, late", late, those(count, number -> number > 4 && number % 4 == 1));
    }

    /** Set back by queue before the death, of a group that sleeps; by time after it, of one that runs through it. */
    private static void reset(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Clients.numbers(producer, topic, PART / 2);
        Thread.sleep(PAUSE_MS);
        long middle = System.currentTimeMillis();
        Thread.sleep(PAUSE_MS);
        for (int number = PART / 2; number < PART; number++) {
            send(producer, Clients.message(topic, Integer.toString(number)));
        }
        String sleeping = "sleeping-" + topic, running = "running-" + topic;
        DefaultMQPushConsumer sleeper = Clients.push(cases, sleeping);
        Clients.Got first = Clients.concurrently(sleeper);
        sleeper.subscribe(topic, "*");
        sleeper.start();
        Clients.Got got = consumer(cases, running, topic, MessageSelector.byTag("*"));
        gets("the one that will sleep", first, Clients.numbered(0, PART));
        gets("the one that runs", got, Clients.numbered(0, PART));
        Cases.until("both have committed", () -> lag(cases, sleeping) == 0 && lag(cases, running) == 0);
        sleeper.shutdown();
        cases.admin.resetOffsetByQueueId(cases.master(), sleeping, topic, 2, 4);
        cases.death.awaitOver(topic);

        Clients.Got rest = consumer(cases, sleeping, topic, MessageSelector.byTag("*"));
        got.messages.clear();
        Cases.until("the new master knows the consumer and sets its offsets back", () -> {
            try {
                boolean known = !cases.admin.examineConsumerConnectionInfo(running).getConnectionSet().isEmpty();
                return known && !cases.admin.resetOffsetByTimestamp(topic, running, middle, true).isEmpty();
            } catch (MQClientException | MQBrokerException notYet) {
                return false;
            }
        });
        gets("the second half again", got, Clients.numbered(PART / 2, PART));
        Cases.until("six of queue 2", () -> rest.messages.size() >= 6);
        Set<Long> offsets = new TreeSet<>();
        rest.messages.forEach(item -> offsets.add(item.getQueueId() * 100 + item.getQueueOffset()));
        Cases.same("queue 2 from offset 4", Set.of(204L, 205L, 206L, 207L, 208L, 209L), offsets);
        producer.shutdown();
    }

    private static long lag(Cases cases, String group) throws Exception {
        try {
            return cases.admin.examineConsumeStats(group).computeTotalDiff();
        } catch (MQClientException | MQBrokerException notYet) {
            return Long.MAX_VALUE;
        }
    }

    /** Queue id → offsets, in the order in which each first came. */
    private static Map<Integer, List<Long>> places(Collection<MessageExt> messages) {
        Map<Integer, List<Long>> found = new TreeMap<>();
        for (MessageExt message : messages) {
            List<Long> offsets = found.computeIfAbsent(message.getQueueId(), queue -> new ArrayList<>());
            if (!offsets.contains(message.getQueueOffset())) {
                offsets.add(message.getQueueOffset());
            }
        }
        return found;
    }

    /** What the dead master took is found on the new one by key, by id and by its place in the log. */
    private static void query(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        List<SendResult> results = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            if (number == 10) {
                cases.death.awaitOver(topic);
            }
            results.add(send(producer, new Message(topic, "tag", "a" + number + " common", ("body" + number).getBytes())));
        }
        Cases.until("all by the common key", () -> Sending.byKey(cases, topic, "common").size() == 20);
        String master = cases.master();
        for (int number : List.of(0, 9, 10, 19)) {
            SendResult result = results.get(number);
            MessageExt byKey = Sending.byKey(cases, topic, "a" + number).get(0);
            MessageExt byId = cases.admin.viewMessage(topic, result.getMsgId());
            long offset = MessageDecoder.decodeMessageId(result.getOffsetMsgId()).getOffset();
            MessageExt byPlace = cases.admin.viewMessage(topic, MessageDecoder.createMessageId(address(master), offset));
            for (MessageExt found : List.of(byKey, byId, byPlace)) {
                Cases.same("body", "body" + number, Clients.text(found));
                Cases.same("its place", List.of(result.getQueueOffset(), offset), List.of(found.getQueueOffset(), found.getCommitLogOffset()));
            }
        }
        producer.shutdown();
    }

    private static InetSocketAddress address(String text) {
        int colon = text.lastIndexOf(':');
        return new InetSocketAddress(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }

    /** Bodies of 4 MiB that no compression makes smaller. */
    private static void big(Cases cases, String topic) throws Exception {
        Set<String> got = new ConcurrentSkipListSet<>();
        DefaultMQPushConsumer consumer = Clients.push(cases, "group-" + topic);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> got.add(digest(message.getBody())));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.subscribe(topic, "*");
        consumer.start();
        int count = sendThrough(cases, topic, 3, number -> new Message(topic, random(number)));
        Set<String> wanted = new TreeSet<>();
        for (int number = 0; number < count; number++) {
            wanted.add(digest(random(number)));
        }
        Cases.until("the big ones", () -> got.containsAll(wanted));
        Cases.same("bodies", wanted, got);
        consumer.shutdown();
    }

    private static byte[] random(int seed) {
        byte[] found = new byte[4 * MIB];
        new Random(seed).nextBytes(found);
        return found;
    }

    private static String digest(byte[] body) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static void unicode(Cases cases, String topic) throws Exception {
        String tag = "标签🐎", key = "ключ鍵🔑", body = "žluťoučký 🐎\0\n", name = "имя", value = "значение = ; ✓ 🐎";
        MessageSelector selector = MessageSelector.byTag("nobody || " + tag);
        String group = "Uni%|_-group-" + topic.hashCode();
        Clients.Got got = consumer(cases, group, topic, selector);
        int count = sendThrough(cases, topic, 5, number -> {
            Message message = new Message(topic, number % 2 == 0 ? tag : "other", key + number, (body + number).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty(name, value);
            return message;
        });
        Set<String> wanted = new TreeSet<>();
        those(count, number -> number % 2 == 0).forEach(number -> wanted.add(body + number));
        gets("those with the tag", got, wanted);
        Clients.Got late = consumer(cases, group + "-late", topic, selector);
        gets("late", late, wanted);
        for (MessageExt found : late.messages) {
            String number = Clients.text(found).substring(body.length());
            List<String> facts = List.of(found.getTags(), found.getKeys(), found.getUserProperty(name));
            Cases.same("tag, key, property", List.of(tag, key + number, value), facts);
        }
        for (int number : List.of(0, count - 1)) {
            Cases.until("by key", () -> !Sending.byKey(cases, topic, key + number).isEmpty());
            Cases.same("by key", body + number, Clients.text(Sending.byKey(cases, topic, key + number).get(0)));
        }
    }

    /** What was committed before the death is not read again by the group, what was only read is. */
    private static void lite(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Clients.numbers(producer, topic, PART);
        String group = "group-" + topic;
        DefaultLitePullConsumer first = Clients.pull(cases, group);
        first.setAutoCommit(false);
        first.subscribe(topic, "*");
        first.start();
        List<MessageExt> read = new ArrayList<>();
        poll(first, read, PART);
        first.commit();
        Cases.until("it is committed", () -> lag(cases, group) == 0);
        DefaultLitePullConsumer assigned = Clients.pull(cases, "assigned-" + topic);
        assigned.setAutoCommit(false);
        assigned.start();
        List<MessageQueue> queues = new ArrayList<>(assigned.fetchMessageQueues(topic));
        assigned.assign(queues);
        poll(assigned, new ArrayList<>(), PART);
        for (int number = PART; number < PART + 20; number++) {
            Clients.send(producer, Clients.message(topic, Integer.toString(number)));
        }
        poll(first, read, PART + 20);
        cases.death.awaitOver(topic);

        for (int number = PART + 20; number < PART + 40; number++) {
            send(producer, Clients.message(topic, Integer.toString(number)));
        }
        poll(first, read, PART + 40);
        Cases.same("read through the death", Clients.numbered(0, PART + 40), bodies(read));
        // a send that is tried again takes another queue: no more than this is known of each
        Map<Integer, List<Long>> whole = places(read);
        whole.forEach((queue, found) ->
            Cases.same("in order in " + queue, LongStream.range(0, found.size()).boxed().toList(), found));
        first.shutdown();
        DefaultLitePullConsumer second = Clients.pull(cases, group);
        second.subscribe(topic, "*");
        second.start();
        List<MessageExt> rest = new ArrayList<>();
        poll(second, rest, 40);
        Cases.same("not committed", Clients.numbered(PART, PART + 40), bodies(rest));
        second.shutdown();
        assigned.assign(List.of(queues.get(1)));
        assigned.seek(queues.get(1), 5);
        List<MessageExt> sought = new ArrayList<>();
        int queue = queues.get(1).getQueueId();
        List<Long> wanted = whole.get(queue).subList(5, whole.get(queue).size());
        Cases.until(wanted.size() + " messages", () -> {
            sought.addAll(assigned.poll(200));
            return places(sought).getOrDefault(queue, List.of()).size() >= wanted.size();
        });
        Cases.same("from 5", Map.of(queue, wanted), places(sought));
        assigned.shutdown();
        producer.shutdown();
    }

    private static void poll(DefaultLitePullConsumer consumer, List<MessageExt> into, int count) throws Exception {
        Cases.until(count + " messages", () -> {
            into.addAll(consumer.poll(200));
            return bodies(into).size() >= count;
        });
    }

    private static Set<String> bodies(List<MessageExt> messages) {
        Set<String> found = new TreeSet<>();
        messages.forEach(message -> found.add(Clients.text(message)));
        return found;
    }

    /** Two members that read in order: each queue has one of them, before and after, and its order holds throughout. */
    private static void shared(Cases cases, String topic) throws Exception {
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        Clients.Got all = new Clients.Got();
        for (int member = 0; member < 2; member++) {
            DefaultMQPushConsumer consumer = Clients.push(cases, "group-" + topic);
            Clients.orderly(consumer, message -> all.messages.add(message));
            consumer.subscribe(topic, "*");
            consumer.start();
            members.add(consumer);
        }
        Cases.until("they share", () -> queues(topic, members).equals(List.of(2, 2)));
        int count = sendThrough(cases, topic, PART, number -> Clients.message(topic, Integer.toString(number)));
        gets("both together", all, Clients.numbered(0, count));
        places(all.messages).forEach((queue, offsets) -> {
            List<Long> whole = LongStream.range(0, offsets.size()).boxed().toList();
            Cases.same("order of queue " + queue, whole, offsets);
        });
        Cases.until("they share after it", () -> queues(topic, members).equals(List.of(2, 2)));
        members.remove(1).shutdown();
        Cases.until("one has all", () -> queues(topic, members).equals(List.of(Cases.QUEUES)));
        members.remove(0).shutdown();
    }

    /** How many queues each member holds locked; a queue that two hold counts for nobody. */
    @SuppressWarnings("deprecation")
    private static List<Integer> queues(String topic, List<DefaultMQPushConsumer> members) {
        List<Integer> found = new ArrayList<>();
        Set<MessageQueue> seen = new HashSet<>();
        for (DefaultMQPushConsumer member : members) {
            Set<MessageQueue> mine = new HashSet<>();
            member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, state) -> {
                if (queue.getTopic().equals(topic) && state.isLocked() && !state.isDropped()) {
                    mine.add(queue);
                }
            });
            mine.removeIf(queue -> !seen.add(queue));
            found.add(mine.size());
        }
        return found;
    }
}
