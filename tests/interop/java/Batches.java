import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends batches of 1 to 7 messages in turn, after each third one a message alone, and prints
 * "SEND_OK number queueId queueOffset" for every message. A refused batch is tried again.
 * Arguments: name server, topic, first number, count, bytes per body. Bodies are those of Produce.
 */
public final class Batches {
    private static final long PATIENCE_MS = TimeUnit.SECONDS.toMillis(300);
    private static final long PAUSE_AFTER_FAILURE_MS = 100;
    private static final int LONGEST = 7;
    private static final int SINGLE_EVERY = 3;

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-batches");
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(1000);
        producer.setSendMsgTimeout(10000);
        producer.start();
        int first = Integer.parseInt(arguments[2]);
        int end = first + Integer.parseInt(arguments[3]);
        int size = Integer.parseInt(arguments[4]);
        int sent = 0;
        for (int number = first; number < end; sent++) {
            List<Message> batch = new ArrayList<>();
            int stop = Math.min(end, number + 1 + sent % LONGEST);
            for (int next = number; next < stop; next++) {
                batch.add(message(arguments[1], next, size));
            }
            print(number, send(() -> producer.send(batch)), batch.size());
            number = stop;
            if (sent % SINGLE_EVERY == 0 && number < end) {
                Message single = message(arguments[1], number, size);
                print(number, send(() -> producer.send(single)), 1);
                number++;
            }
        }
        producer.shutdown();
        System.exit(0); // the client's threads go on for three seconds
    }

    private static SendResult send(Callable<SendResult> attempt) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
        while (true) {
            try {
                return attempt.call();
            } catch (MQClientException | MQBrokerException problem) {
                if (System.nanoTime() > deadline) {
                    throw problem;
                }
                Thread.sleep(PAUSE_AFTER_FAILURE_MS);
            }
        }
    }

    private static Message message(String topic, int number, int size) {
        return new Message(topic, "tag" + number % 3, "key" + number, Produce.body(number, size));
    }

    private static void print(int number, SendResult result, int count) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("message " + number + ": " + result.getSendStatus());
        }
        for (int place = 0; place < count; place++) {
            int queue = result.getMessageQueue().getQueueId();
            System.out.println("SEND_OK " + (number + place) + " " + queue + " " + (result.getQueueOffset() + place));
        }
    }
}
