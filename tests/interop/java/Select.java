import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends messages to one queue, then pulls them with one selector after the other. Prints "RESULT n numbers" (the bodies
 * of what came, joined by commas, or "-") or "ERROR n code" for selector n.
 * Arguments: name server, topic, file of messages, file of selectors. Lines are Base64: of a selector, or of a message's
 * properties as "name=value" lines; message n has the body n.
 */
@SuppressWarnings("deprecation")
public final class Select {
    public static void main(String[] arguments) throws Exception {
        MessageQueue queue = send(arguments[0], arguments[1], lines(arguments[2]));
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("selecting");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.start();
        // the client selects only at a broker whose version it knows, which it learns by a heartbeat
        MQClientInstance client = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        client.updateTopicRouteInfoFromNameServer(arguments[1]);
        client.sendHeartbeatToAllBrokerWithLock();
        int number = 0;
        for (String selector : lines(arguments[3])) {
            System.out.println(select(consumer, queue, selector, number++));
        }
        consumer.shutdown();
        System.exit(0); // the client's threads go on for three seconds
    }

    private static List<String> lines(String file) throws Exception {
        List<String> found = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(file))) {
            found.add(new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8));
        }
        return found;
    }

    private static MessageQueue send(String nameServer, String topic, List<String> messages) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("selected");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        MessageQueue queue = null;
        for (int number = 0; number < messages.size(); number++) {
            Message message = new Message(topic, Integer.toString(number).getBytes(StandardCharsets.UTF_8));
            for (String line : messages.get(number).split("\n")) {
                int equals = line.indexOf('=');
                if (equals > 0 && line.startsWith("TAGS")) {
                    message.setTags(line.substring(equals + 1));
                } else if (equals > 0) {
                    message.putUserProperty(line.substring(0, equals), line.substring(equals + 1));
                }
            }
            SendResult result = producer.send(message, (queues, item, argument) -> queues.get(0), null);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException(result.toString());
            }
            queue = result.getMessageQueue();
        }
        producer.shutdown();
        return queue;
    }

    private static String select(DefaultMQPullConsumer consumer, MessageQueue queue, String selector, int number)
        throws Exception {
        List<String> bodies = new ArrayList<>();
        long offset = 0;
        try {
            while (true) {
                PullResult result = consumer.pull(queue, MessageSelector.bySql(selector), offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                    }
                } else if (result.getPullStatus() != PullStatus.NO_MATCHED_MSG || result.getNextBeginOffset() == offset) {
                    return "RESULT " + number + " " + (bodies.isEmpty() ? "-" : String.join(",", bodies));
                }
                offset = result.getNextBeginOffset();
            }
        } catch (MQBrokerException refusal) {
            return "ERROR " + number + " " + refusal.getResponseCode();
        } catch (Exception other) {
            return "ERROR " + number + " " + other.getClass().getSimpleName();
        }
    }
}
