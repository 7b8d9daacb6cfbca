import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Clients as the cases need them, each a client instance of its own, and what consumers have got. */
final class Clients {
    private static final AtomicInteger NEXT = new AtomicInteger();
    private static final int POLL_MS = 1000;

    private Clients() {
    }

    static final class Got {
        final ConcurrentLinkedQueue<MessageExt> messages = new ConcurrentLinkedQueue<>();

        Set<String> bodies() {
            Set<String> found = new TreeSet<>();
            messages.forEach(message -> found.add(text(message)));
            return found;
        }
    }

    static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static String name(String kind) {
        return kind + "-" + NEXT.incrementAndGet();
    }

    static DefaultMQProducer producer(Cases cases) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer("case-producers");
        made.setNamesrvAddr(cases.nameServer);
        made.setInstanceName(name("producer"));
        made.setPollNameServerInterval(POLL_MS);
        made.setSendMsgTimeout(10_000);
        made.setMaxMessageSize(16 * 1024 * 1024);
        made.start();
        return made;
    }

    static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static SendResult send(DefaultMQProducer producer, Message message) throws Exception {
        SendResult result = producer.send(message);
        Cases.same("status of " + result, SendStatus.SEND_OK, result.getSendStatus());
        return result;
    }

    /** Bodies "0" to "count - 1", one after the other. */
    static List<SendResult> numbers(DefaultMQProducer producer, String topic, int count) throws Exception {
        List<SendResult> found = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            found.add(send(producer, message(topic, Integer.toString(number))));
        }
        return found;
    }

    static Set<String> numbered(int from, int to) {
        Set<String> found = new TreeSet<>();
        for (int number = from; number < to; number++) {
            found.add(Integer.toString(number));
        }
        return found;
    }

    static DefaultMQPushConsumer push(Cases cases, String group) {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(cases.nameServer);
        made.setInstanceName(name("push"));
        made.setPollNameServerInterval(POLL_MS);
        made.setPersistConsumerOffsetInterval(500);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return made;
    }

    /** Not started. */
    static Got concurrently(DefaultMQPushConsumer consumer) {
        Got got = new Got();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.messages.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return got;
    }

    /** Not started. Holds what it has succeeded with. */
    static Got orderly(DefaultMQPushConsumer consumer, Predicate<MessageExt> succeeds) {
        Got got = new Got();
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            context.setSuspendCurrentQueueTimeMillis(20);
            if (!messages.stream().allMatch(succeeds)) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            got.messages.addAll(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        return got;
    }

    static DefaultLitePullConsumer pull(Cases cases, String group) {
        DefaultLitePullConsumer made = new DefaultLitePullConsumer(group);
        made.setNamesrvAddr(cases.nameServer);
        made.setInstanceName(name("pull"));
        made.setPollNameServerInterval(POLL_MS);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return made;
    }
}
