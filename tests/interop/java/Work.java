import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * A push consumer that fails on purpose. Prints "TRY number queueId queueOffset reconsumeTimes atMs ageMs" for every delivery
 * until killed; the number is what the body begins with, the age counts from Produce's askedMs, else from the birth.
 * Arguments: name server, topic, "concurrently", "orderly", "broadcast" or "pop", consumer group, how often each message
 * fails before it succeeds, most attempts after the first, and a selector: "tag:..." or "sql:...".
 * With "pop" a message that was pulled counts for nothing: it prints "PULLED number".
 */
public final class Work {
    private static final int FIRST_LEVEL = 1;
    private static final long SUSPEND_MS = 50;
    private static final long INVISIBLE_MS = 10_000;

    public static void main(String[] arguments) throws Exception {
        Retried.run(() -> work(arguments));
    }

    private static void work(String[] arguments) throws Exception {
        int failures = Integer.parseInt(arguments[4]);
        boolean pops = arguments[2].equals("pop");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[3]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(Integer.parseInt(arguments[5]));
        String selector = arguments[6].substring(4);
        if (arguments[6].startsWith("sql:")) {
            consumer.subscribe(arguments[1], MessageSelector.bySql(selector));
        } else {
            consumer.subscribe(arguments[1], selector);
        }
        if (pops) {
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(INVISIBLE_MS);
        }
        if (arguments[2].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(SUSPEND_MS);
                boolean done = messages.stream().map(message -> attempt(message, failures, false)).reduce(true, Boolean::logicalAnd);
                return done ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            if (arguments[2].equals("broadcast")) {
                consumer.setMessageModel(MessageModel.BROADCASTING);
            }
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(FIRST_LEVEL);
                boolean done = messages.stream().map(message -> attempt(message, failures, pops)).reduce(true, Boolean::logicalAnd);
                return done ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        System.out.println("STARTED");
        new CountDownLatch(1).await();
    }

    private static long askedMs(MessageExt message) {
        String asked = message.getUserProperty(Produce.ASKED_MS);
        return asked == null ? message.getBornTimestamp() : Long.parseLong(asked);
    }

    private static synchronized boolean attempt(MessageExt message, int failures, boolean pops) {
        String number = new String(message.getBody(), StandardCharsets.UTF_8).replaceAll("\\D[\\s\\S]*", "");
        if (pops && message.getProperty(MessageConst.PROPERTY_POP_CK) == null) {
            System.out.println("PULLED " + number);
            return true;
        }
        long now = System.currentTimeMillis();
        System.out.println("TRY " + number + " " + message.getQueueId() + " " + message.getQueueOffset() + " "
            + message.getReconsumeTimes() + " " + now + " " + (now - askedMs(message)));
        return message.getReconsumeTimes() >= failures;
    }
}
