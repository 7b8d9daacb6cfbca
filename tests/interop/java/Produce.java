import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends messages one after the other and prints a line per answer: "SEND_OK number queueId queueOffset" for what was
 * acknowledged, "FAILED number reason" for an attempt that was not. A message is tried until it is acknowledged.
 * Arguments: name server, topic, first number, count, bytes per body, pause after each message in milliseconds, and
 * perhaps a delay level, or milliseconds after which it comes, by each of the three setters in turn, written as "5000ms".
 * Message n has the tag "tag" + n % 3 and the properties n (as text), parity and askedMs.
 */
public final class Produce {
    private static final long PATIENCE_MS = TimeUnit.SECONDS.toMillis(300);
    private static final long PAUSE_AFTER_FAILURE_MS = 100;
    /** The time (ms) before anything about the message was set; the client reads its time of birth later, at each try. */
    static final String ASKED_MS = "askedMs";

    private static int delayLevel;
    private static long delayMs;

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-producers", Account.hook());
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(Integer.getInteger("interop.poll", 1000));
        producer.setSendMsgTimeout(Integer.getInteger("interop.timeout", 10_000));
        producer.start();
        int first = Integer.parseInt(arguments[2]);
        int end = first + Integer.parseInt(arguments[3]);
        int size = Integer.parseInt(arguments[4]);
        long pause = Long.parseLong(arguments[5]);
        String delay = arguments.length > 6 ? arguments[6] : "0";
        if (delay.endsWith("ms")) {
            delayMs = Long.parseLong(delay.substring(0, delay.length() - 2));
        } else {
            delayLevel = Integer.parseInt(delay);
        }
        for (int number = first; number < end; number++) {
            send(producer, arguments[1], number, size);
            if (pause > 0) {
                Thread.sleep(pause);
            }
        }
        producer.shutdown();
        System.exit(0); // the client's threads go on for three seconds
    }

    /** The body is the number, filled up to the size with dots. */
    static byte[] body(int number, int size) {
        StringBuilder text = new StringBuilder().append(number);
        while (text.length() < size) {
            text.append('.');
        }
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static void setTime(Message message, int number) {
        if (number % 3 == 0) {
            message.setDelayTimeMs(delayMs);
        } else if (number % 3 == 1) {
            message.setDelayTimeSec(delayMs / 1000);
        } else {
            message.setDeliverTimeMs(System.currentTimeMillis() + delayMs);
        }
    }

    private static void send(DefaultMQProducer producer, String topic, int number, int size) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
        while (true) {
            String failure;
            try {
                Message message = new Message(topic, "tag" + number % 3, "key" + number, body(number, size));
                message.putUserProperty(ASKED_MS, Long.toString(System.currentTimeMillis()));
                if (delayLevel > 0) {
                    message.setDelayTimeLevel(delayLevel);
                }
                if (delayMs > 0) {
                    setTime(message, number);
                }
                message.putUserProperty("n", Integer.toString(number));
                message.putUserProperty("parity", number % 2 == 0 ? "even" : "odd");
                SendResult result = producer.send(message);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    int queue = result.getMessageQueue().getQueueId();
                    System.out.println("SEND_OK " + number + " " + queue + " " + result.getQueueOffset());
                    return;
                }
                failure = result.getSendStatus().toString();
            } catch (Exception problem) {
                failure = String.valueOf(problem.getMessage()).replace('\n', ' ');
            }
            System.out.println("FAILED " + number + " " + failure);
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("message " + number + " was never acknowledged");
            }
            Thread.sleep(PAUSE_AFTER_FAILURE_MS);
        }
    }
}
