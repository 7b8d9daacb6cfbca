import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
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
 * "push|simple" group, failures: prints "TRY number attempt lateMs" for each delivery until killed; lateMs is the time since
 * the message was due, 0 if it was due at once. The properties interop.accessKey and interop.secretKey name a user.
 */
public final class Grpc {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final long DELAY_MS = 5000;
    private static final String DUE = "due";

    public static void main(String[] arguments) throws Exception {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .enableSsl(false).setRequestTimeout(Duration.ofSeconds(30));
        String user = System.getProperty("interop.accessKey");
        if (user != null) {
            String password = System.getProperty("interop.secretKey");
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(user, password));
        }
        ClientConfiguration configuration = builder.build();
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
            .setTransactionChecker(Grpc::ending).build();
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
            long dueMs = System.currentTimeMillis() + DELAY_MS;
            builder.setDeliveryTimestamp(dueMs).addProperty(DUE, String.valueOf(dueMs));
        }
        Message message = builder.build();
        if (kind.equals("transaction")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message, transaction);
            if (ends(number) == TransactionResolution.COMMIT) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
            return;
        }
        producer.send(message);
    }

    private static TransactionResolution ends(int number) {
        return number % 2 == 0 ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    }

    /** Of one that the proxy asks about, since its end, or the answer to its send, did not come in time. */
    private static TransactionResolution ending(MessageView view) {
        return ends(Integer.parseInt(text(view)));
    }

    private static String text(MessageView view) {
        byte[] body = new byte[view.getBody().remaining()];
        view.getBody().get(body);
        return new String(body, StandardCharsets.UTF_8);
    }

    private static boolean attempt(MessageView view, int failures) {
        long now = System.currentTimeMillis();
        String due = view.getProperties().get(DUE);
        long lateMs = due == null ? 0 : now - Long.parseLong(due);
        synchronized (Grpc.class) {
            System.out.println("TRY " + text(view) + " " + view.getDeliveryAttempt() + " " + lateMs);
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
