import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * A push consumer that fails on purpose. Prints "TRY number queueId queueOffset reconsumeTimes atMs ageMs" for every delivery
 * until killed; the number is what the body begins with.
 * Arguments: name server, topic, "concurrently", "orderly" or "broadcast", consumer group, how often each message fails
 * before it succeeds, most attempts after the first, and a selector: "tag:..." or "sql:...".
 */
public final class Work {
    private static final int FIRST_LEVEL = 1;
    private static final long SUSPEND_MS = 50;

    public static void main(String[] arguments) throws Exception {
        int failures = Integer.parseInt(arguments[4]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[3]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setPollNameServerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(Integer.parseInt(arguments[5]));
        String selector = arguments[6].substring(4);
        if (arguments[6].startsWith("sql:")) {
            consumer.subscribe(arguments[1], MessageSelector.bySql(selector));
        } else {
            consumer.subscribe(arguments[1], selector);
        }
        if (arguments[2].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(SUSPEND_MS);
                boolean done = messages.stream().map(message -> attempt(message, failures)).reduce(true, Boolean::logicalAnd);
                return done ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            if (arguments[2].equals("broadcast")) {
                consumer.setMessageModel(MessageModel.BROADCASTING);
            }
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(FIRST_LEVEL);
                boolean done = messages.stream().map(message -> attempt(message, failures)).reduce(true, Boolean::logicalAnd);
                return done ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        System.out.println("STARTED");
        new CountDownLatch(1).await();
    }

    private static synchronized boolean attempt(MessageExt message, int failures) {
        String number = new String(message.getBody(), StandardCharsets.UTF_8).replaceAll("\\D[\\s\\S]*", "");
        long now = System.currentTimeMillis();
        System.out.println("TRY " + number + " " + message.getQueueId() + " " + message.getQueueOffset() + " "
            + message.getReconsumeTimes() + " " + now + " " + (now - message.getBornTimestamp()));
        return message.getReconsumeTimes() >= failures;
    }
}
