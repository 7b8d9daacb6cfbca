import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Prints "GOT number queueId queueOffset bodySha256 fields" for every message until killed; the number is "-" if the
 * body does not begin with one, the fields are in base64, in the order of tests/interop/lab/log_rows.py.
 * Arguments: name server, topic, "push" or "pull", consumer group.
 */
public final class Consume {
    public static void main(String[] arguments) throws Exception {
        if (arguments[2].equals("push")) {
            Retried.run(() -> push(arguments[0], arguments[1], arguments[3]));
        } else {
            Retried.run(() -> pull(arguments[0], arguments[1], arguments[3]));
        }
    }

    private static synchronized void print(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            String number = new String(message.getBody(), StandardCharsets.UTF_8).replaceAll("\\D[\\s\\S]*", "");
            String place = message.getQueueId() + " " + message.getQueueOffset();
            System.out.println("GOT " + (number.isEmpty() ? "-" : number) + " " + place + " " + digest(message.getBody())
                + " " + fields(message));
        }
    }

    /** All that the client tells of a message but its place and body, parted by zeros. */
    private static String fields(MessageExt message) {
        List<Object> all = List.of(message.getTopic(), message.getCommitLogOffset(), message.getStoreSize(),
            message.getBornTimestamp(), message.getStoreTimestamp(), host(message.getBornHost()),
            host(message.getStoreHost()), message.getSysFlag(), message.getFlag(), message.getBodyCRC(),
            message.getReconsumeTimes(), message.getPreparedTransactionOffset(), message.getMsgId(),
            String.valueOf(message.getKeys()), String.valueOf(message.getTags()),
            MessageDecoder.messageProperties2String(message.getProperties()));
        String text = all.stream().map(Object::toString).collect(Collectors.joining("\0"));
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String host(SocketAddress address) {
        InetSocketAddress found = (InetSocketAddress) address;
        return found.getAddress().getHostAddress() + ":" + found.getPort();
    }

    private static String digest(byte[] body) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static void push(String nameServer, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, Account.hook());
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
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, Account.hook());
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
