import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.producer.RecallMessageHandle;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/** Cases of producers: every way to send, what is too big, what is not ASCII, finding a message again. */
final class Sending {
    private static final int MIB = 1024 * 1024;

    private Sending() {
    }

    static void list(Map<String, Cases.Case> all) {
        all.put("sync", Sending::sync);
        all.put("async", Sending::async);
        all.put("oneway", Sending::oneway);
        all.put("batch", Sending::batch);
        all.put("big", Sending::big);
        all.put("unicode", Sending::unicode);
        all.put("selector", Sending::selector);
        all.put("query", Sending::query);
        all.put("recall", Sending::recall);
    }

    /** A consumer of the topic alone gets these bodies and no others. */
    private static Clients.Got consumed(Cases cases, String topic, Set<String> bodies) throws Exception {
        DefaultMQPushConsumer consumer = Clients.push(cases, "group-" + topic);
        Clients.Got got = Clients.concurrently(consumer);
        consumer.subscribe(topic, "*");
        consumer.start();
        Cases.until(bodies.size() + " messages of " + topic, () -> got.bodies().containsAll(bodies));
        consumer.shutdown();
        Cases.same("consumed", bodies, got.bodies());
        return got;
    }

    private static void sync(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Map<Integer, Long> next = new HashMap<>();
        for (SendResult result : Clients.numbers(producer, topic, 40)) {
            int queue = result.getMessageQueue().getQueueId();
            Cases.same("offset in queue " + queue, next.getOrDefault(queue, 0L), result.getQueueOffset());
            next.put(queue, result.getQueueOffset() + 1);
        }
        Cases.same("queues used in turn", Map.of(0, 10L, 1, 10L, 2, 10L, 3, 10L), next);
        consumed(cases, topic, Clients.numbered(0, 40));
        producer.shutdown();
    }

    private static void async(Cases cases, String topic) throws Exception {
        int count = 300;
        DefaultMQProducer producer = Clients.producer(cases);
        ConcurrentLinkedQueue<Object> answers = new ConcurrentLinkedQueue<>();
        for (int number = 0; number < count; number++) {
            producer.send(Clients.message(topic, Integer.toString(number)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answers.add(result.getSendStatus());
                }

                @Override
                public void onException(Throwable failure) {
                    answers.add(failure);
                }
            });
        }
        Cases.until("all callbacks", () -> answers.size() == count);
        Cases.same("answers", Set.of(SendStatus.SEND_OK), new HashSet<>(answers));
        consumed(cases, topic, Clients.numbered(0, count));
        producer.shutdown();
    }

    private static void oneway(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        for (int number = 0; number < 100; number++) {
            producer.sendOneway(Clients.message(topic, Integer.toString(number)));
        }
        consumed(cases, topic, Clients.numbered(0, 100));
        producer.shutdown();
    }

    private static void batch(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        for (int first = 0; first < 60; first += 20) {
            List<Message> messages = new ArrayList<>();
            for (int number = first; number < first + 20; number++) {
                Message message = new Message(topic, "tag" + number % 2, "key" + number, Integer.toString(number).getBytes());
                message.putUserProperty("n", "№" + number);
                messages.add(message);
            }
            Cases.same("status", SendStatus.SEND_OK, producer.send(messages).getSendStatus());
        }
        for (MessageExt message : consumed(cases, topic, Clients.numbered(0, 60)).messages) {
            int number = Integer.parseInt(Clients.text(message));
            Cases.same("tag", "tag" + number % 2, message.getTags());
            Cases.same("keys", "key" + number, message.getKeys());
            Cases.same("property", "№" + number, message.getUserProperty("n"));
        }
        producer.shutdown();
    }

    /** The largest bodies, that no compression makes smaller; one byte more is refused by the broker. */
    private static void big(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        producer.setCompressMsgBodyOverHowmuch(4 * MIB + 2); // random bytes would grow
        List<byte[]> bodies = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            byte[] body = new byte[4 * MIB];
            new Random(number).nextBytes(body);
            bodies.add(body);
            Clients.send(producer, new Message(topic, body));
        }
        byte[] packed = new byte[8 * MIB];
        Arrays.fill(packed, (byte) 'x');
        Clients.send(producer, new Message(topic, packed));
        bodies.add(packed);
        byte[] tooBig = new byte[4 * MIB + 1];
        new Random(9).nextBytes(tooBig);
        try {
            producer.send(new Message(topic, tooBig));
            throw new IllegalStateException("a body of 4 MiB + 1 was taken");
        } catch (MQBrokerException refusal) {
            Cases.same("code", ResponseCode.MESSAGE_ILLEGAL, refusal.getResponseCode());
        }
        DefaultMQPushConsumer consumer = Clients.push(cases, "group-" + topic);
        Clients.Got got = Clients.concurrently(consumer);
        consumer.subscribe(topic, "*");
        consumer.start();
        for (byte[] body : bodies) {
            Cases.until("a body as it was", () -> got.messages.stream().anyMatch(item -> Arrays.equals(body, item.getBody())));
        }
        Cases.check("nothing else", got.messages.stream().allMatch(item -> bodies.stream().anyMatch(body -> Arrays.equals(body, item.getBody()))));
        consumer.shutdown();
        producer.shutdown();
    }

    private static void unicode(Cases cases, String topic) throws Exception {
        String tag = "标签🐎", key = "ключ鍵🔑", body = "žluťoučký 🐎\0\n", name = "имя", value = "значение = ; ✓ 🐎";
        DefaultMQProducer producer = Clients.producer(cases);
        Message message = new Message(topic, tag, key, body.getBytes("UTF-8"));
        message.putUserProperty(name, value);
        Clients.send(producer, message);
        Clients.send(producer, new Message(topic, "other", key, "no".getBytes()));
        DefaultMQPushConsumer consumer = Clients.push(cases, "Uni%|_-group-" + topic.hashCode());
        Clients.Got got = Clients.concurrently(consumer);
        consumer.subscribe(topic, "nobody || " + tag);
        consumer.start();
        Cases.until("the message with the tag", () -> !got.messages.isEmpty());
        Cases.same("bodies", Set.of(body), got.bodies());
        MessageExt found = got.messages.peek();
        Cases.same("tag, key, property", List.of(tag, key, value), List.of(found.getTags(), found.getKeys(), found.getUserProperty(name)));
        Cases.until("both by key", () -> byKey(cases, topic, key).size() == 2);
        consumer.shutdown();
        producer.shutdown();
    }

    /** One order, one queue, in order. */
    private static void selector(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Map<Integer, Set<Integer>> queues = new HashMap<>();
        for (int number = 0; number < 80; number++) {
            Message message = Clients.message(topic, Integer.toString(number));
            message.putUserProperty("order", Integer.toString(number % 7));
            SendResult result = producer.send(message, new SelectMessageQueueByHash(), number % 7);
            Cases.same("status", SendStatus.SEND_OK, result.getSendStatus());
            queues.computeIfAbsent(number % 7, order -> new TreeSet<>()).add(result.getMessageQueue().getQueueId());
        }
        queues.forEach((order, found) -> Cases.same("queues of order " + order, Set.of(order % Cases.QUEUES), found));
        Map<String, List<Integer>> seen = new HashMap<>();
        DefaultMQPushConsumer consumer = Clients.push(cases, "group-" + topic);
        Clients.Got got = Clients.orderly(consumer, message -> true);
        consumer.subscribe(topic, "*");
        consumer.start();
        Cases.until("all orders", () -> got.bodies().size() == 80);
        consumer.shutdown();
        for (MessageExt message : got.messages) {
            seen.computeIfAbsent(message.getUserProperty("order"), order -> new ArrayList<>()).add(Integer.valueOf(Clients.text(message)));
        }
        seen.forEach((order, numbers) -> Cases.same("order " + order, numbers.stream().sorted().toList(), numbers));
        producer.shutdown();
    }

    /** Of two timer messages one is taken back; a handle for another topic and one that is none are refused. */
    private static void recall(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Message kept = Clients.message(topic, "kept"), dropped = Clients.message(topic, "dropped");
        kept.setDelayTimeMs(5000);
        dropped.setDelayTimeMs(5000);
        SendResult result = Clients.send(producer, dropped);
        Clients.send(producer, kept);
        Cases.same("id", result.getMsgId(), producer.recallMessage(topic, result.getRecallHandle()));
        String foreign = RecallMessageHandle.HandleV1.buildHandle(
            topic, "elsewhere", String.valueOf(System.currentTimeMillis() + 5000), result.getMsgId());
        String old = RecallMessageHandle.HandleV1.buildHandle(
            topic, result.getMessageQueue().getBrokerName(), "1", result.getMsgId());
        for (String handle : List.of(foreign, old, "none")) {
            try {
                producer.recallMessage(topic, handle);
                throw new IllegalStateException("it was taken: " + handle);
            } catch (MQBrokerException refusal) {
                Cases.same("code", ResponseCode.ILLEGAL_OPERATION, refusal.getResponseCode());
            } catch (MQClientException refusal) {
                Cases.check("the client itself refuses what is no handle, or a broker that there is not", handle != old);
            }
        }
        consumed(cases, topic, Set.of("kept"));
        producer.shutdown();
    }

    static List<MessageExt> byKey(Cases cases, String topic, String key) throws Exception {
        try {
            return cases.admin.queryMessage(topic, key, 64, 0, Long.MAX_VALUE).getMessageList();
        } catch (MQClientException notYet) {
            return List.of();
        }
    }

    private static void query(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        List<SendResult> results = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            Message message = new Message(topic, "tag", "a" + number + " common", ("body" + number).getBytes());
            results.add(Clients.send(producer, message));
        }
        Cases.until("ten by the common key", () -> byKey(cases, topic, "common").size() == 10);
        Cases.same("by a key", "body7", Clients.text(byKey(cases, topic, "a7").get(0)));
        Cases.same("by a key that nobody has", List.of(), byKey(cases, topic, "a77"));
        SendResult result = results.get(3);
        for (String id : List.of(result.getMsgId(), result.getOffsetMsgId())) {
            MessageExt found = cases.admin.viewMessage(topic, id);
            Cases.same("by " + id, "body3", Clients.text(found));
            Cases.same("its place", result.getQueueOffset(), found.getQueueOffset());
        }
        MessageClientExt found = (MessageClientExt) byKey(cases, topic, "a3").get(0);
        Cases.same("its offset id", result.getOffsetMsgId(), found.getOffsetMsgId());
        producer.shutdown();
    }
}
