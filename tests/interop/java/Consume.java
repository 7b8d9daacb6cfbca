import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Prints "GOT number queueId queueOffset" for every message until killed.
 * Arguments: name server, topic, "push" or "pull", consumer group.
 */
public final class Consume {
    public static void main(String[] arguments) throws Exception {
        if (arguments[2].equals("push")) {
            push(arguments[0], arguments[1], arguments[3]);
        } else {
            pull(arguments[0], arguments[1], arguments[3]);
        }
    }

    private static synchronized void print(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            String text = new String(message.getBody(), StandardCharsets.UTF_8);
            int dot = text.indexOf('.');
            String number = dot < 0 ? text : text.substring(0, dot);
            System.out.println("GOT " + number + " " + message.getQueueId() + " " + message.getQueueOffset());
        }
    }

    private static void push(String nameServer, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            print(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        new CountDownLatch(1).await();
    }

    private static void pull(String nameServer, String topic, String group) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        while (true) {
            print(consumer.poll(1000));
        }
    }
}
