import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * A client of RocketMQ 5's gRPC protocol. Arguments: endpoints, what it does, topic, and
 * "normal|fifo|delay|transaction" first number, count, pause (ms): prints "SEND_OK number"; or
 * "push|simple" group, failures: prints "TRY number attempt ageMs" for each delivery until killed.
 */
public final class Grpc {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final long DELAY_MS = 5000;

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .enableSsl(false).setRequestTimeout(Duration.ofSeconds(5)).build();
        switch (arguments[1]) {
            case "push" -> push(configuration, arguments[2], arguments[3], Integer.parseInt(arguments[4]));
            case "simple" -> simple(configuration, arguments[2], arguments[3], Integer.parseInt(arguments[4]));
            default -> send(configuration, arguments);
        }
    }

    private static void send(ClientConfiguration configuration, String[] arguments) throws Exception {
        String kind = arguments[1];
        String topic = arguments[2];
        int first = Integer.parseInt(arguments[3]);
        int last = first + Integer.parseInt(arguments[4]);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(view -> TransactionResolution.COMMIT).build();
        for (int number = first; number < last; number++) {
            for (int tries = 0; ; tries++) {
                try {
                    one(producer, kind, topic, number);
                    System.out.println("SEND_OK " + number);
                    break;
                } catch (ClientException error) {
                    System.out.println("FAILED " + number + " " + error);
                    if (tries == 60) {
                        throw error;
                    }
                    Thread.sleep(500);
                }
            }
            Thread.sleep(Long.parseLong(arguments[5]));
        }
        producer.close();
    }

    private static void one(Producer producer, String kind, String topic, int number) throws Exception {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(topic).setTag("even")
            .setBody(String.valueOf(number).getBytes(StandardCharsets.UTF_8));
        if (kind.equals("fifo")) {
            builder.setMessageGroup("group-" + number % 3);
        } else if (kind.equals("delay")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + DELAY_MS);
        }
        Message message = builder.build();
        if (kind.equals("transaction")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message, transaction);
            if (number % 2 == 0) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
            return;
        }
        producer.send(message);
    }

    private static boolean attempt(MessageView view, int failures) {
        byte[] body = new byte[view.getBody().remaining()];
        view.getBody().get(body);
        String number = new String(body, StandardCharsets.UTF_8);
        long ageMs = System.currentTimeMillis() - view.getBornTimestamp();
        synchronized (Grpc.class) {
            System.out.println("TRY " + number + " " + view.getDeliveryAttempt() + " " + ageMs);
        }
        return view.getDeliveryAttempt() > failures;
    }

    private static void push(ClientConfiguration configuration, String topic, String group, int failures)
        throws Exception {
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> attempt(view, failures) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE)
            .build()) {
            System.out.println("STARTED");
            new CountDownLatch(1).await();
        }
    }

    private static void simple(ClientConfiguration configuration, String topic, String group, int failures)
        throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression("even"))).build()) {
            System.out.println("STARTED");
            while (true) {
                try {
                    for (MessageView view : consumer.receive(16, Duration.ofSeconds(10))) {
                        if (attempt(view, failures)) {
                            consumer.ack(view);
                        } else {
                            consumer.changeInvisibleDuration(view, Duration.ofSeconds(10));
                        }
                    }
                } catch (ClientException error) {
                    System.out.println("FAILED " + error);
                    Thread.sleep(500);
                }
            }
        }
    }
}
