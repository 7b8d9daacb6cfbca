import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Two programs, each in a JVM of its own. "ask": sends the requests 0 to count - 1, each until its answer has come, and
 * prints "GOT number answer", "FAILED number reason" for a try without one, and after the half of them "HALF". "answer":
 * consumes them until killed, answers each with "answer to NUMBER" and prints "ANSWERED number status".
 * Arguments: name server, topic, "ask" or "answer", number of requests.
 */
public final class Asking {
    private static final long TIMEOUT_MS = 5000;
    private static final long PATIENCE_MS = 300_000;
    private static final long PAUSE_MS = 100;

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(arguments[2] + "-producers", Account.hook());
        producer.setNamesrvAddr(arguments[0]);
        producer.setInstanceName(arguments[2]);
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setSendMsgTimeout(3000);
        producer.start();
        if (arguments[2].equals("ask")) {
            int count = Integer.parseInt(arguments[3]);
            for (int number = 0; number < count; number++) {
                if (number == count / 2) {
                    System.out.println("HALF");
                }
                ask(producer, arguments[1], number);
            }
            producer.shutdown();
            System.exit(0);
        }
        answer(producer, arguments[0], arguments[1]);
        new CountDownLatch(1).await();
    }

    private static void ask(DefaultMQProducer producer, String topic, int number) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
        while (true) {
            try {
                byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
                Message answer = producer.request(new Message(topic, body), TIMEOUT_MS);
                System.out.println("GOT " + number + " " + new String(answer.getBody(), StandardCharsets.UTF_8));
                return;
            } catch (Exception problem) {
                System.out.println("FAILED " + number + " " + String.valueOf(problem.getMessage()).replace('\n', ' '));
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("request " + number + " was never answered");
            }
            Thread.sleep(PAUSE_MS);
        }
    }

    private static void answer(DefaultMQProducer producer, String nameServer, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("group-" + topic, Account.hook());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consume");
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String number = new String(message.getBody(), StandardCharsets.UTF_8);
                try {
                    byte[] body = ("answer to " + number).getBytes(StandardCharsets.UTF_8);
                    Message reply = MessageUtil.createReplyMessage(message, body);
                    System.out.println("ANSWERED " + number + " " + producer.send(reply, 3000).getSendStatus());
                } catch (Exception problem) {
                    String reason = String.valueOf(problem.getMessage()).replace('\n', ' ');
                    System.out.println("UNANSWERED " + number + " " + reason);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }
}
