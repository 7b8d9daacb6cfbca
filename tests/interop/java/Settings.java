import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Many producers and consumers side by side, each with settings of its own, each producer sending one message after the
 * other until killed. Prints "ACK name startMs endMs status" for each acknowledgement, "ERROR name startMs endMs reason"
 * for what the application sees instead, "GOT name atMs host" for each message consumed.
 * Arguments: name server, topic, and for each client "name" or "name:key=value,key=value". Keys: poll, retries, timeout,
 * pause (after a failed pull), detector=true, refresh=true (asks for the route after an error), anew=true (a new producer
 * after an error), consumer=true.
 */
public final class Settings {
    private static final int PAUSE_MS = 20;

    public static void main(String[] arguments) {
        for (int place = 2; place < arguments.length; place++) {
            String[] parts = arguments[place].split(":");
            Map<String, String> settings = new HashMap<>();
            for (String item : parts.length > 1 ? parts[1].split(",") : new String[0]) {
                settings.put(item.split("=")[0], item.split("=")[1]);
            }
            Settings client = new Settings(arguments[0], arguments[1], parts[0], settings);
            new Thread(client::run).start();
        }
    }

    private final String nameServer;
    private final String topic;
    private final String name;
    private final Map<String, String> settings;
    private int instances;

    private Settings(String nameServer, String topic, String name, Map<String, String> settings) {
        this.nameServer = nameServer;
        this.topic = topic;
        this.name = name;
        this.settings = settings;
    }

    private void run() {
        try {
            if (settings.containsKey("consumer")) {
                consume();
            } else {
                produce();
            }
        } catch (Exception problem) {
            problem.printStackTrace();
            System.exit(1);
        }
    }

    private void common(ClientConfig config) {
        config.setNamesrvAddr(nameServer);
        config.setInstanceName(name + "-" + instances++);
        if (settings.containsKey("poll")) {
            config.setPollNameServerInterval(Integer.parseInt(settings.get("poll")));
        }
        if (settings.containsKey("pause")) {
            config.setPullTimeDelayMillsWhenException(Long.parseLong(settings.get("pause")));
        }
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer made = new DefaultMQProducer("settings-" + name);
        common(made);
        if (settings.containsKey("retries")) {
            made.setRetryTimesWhenSendFailed(Integer.parseInt(settings.get("retries")));
        }
        if (settings.containsKey("timeout")) {
            made.setSendMsgTimeout(Integer.parseInt(settings.get("timeout")));
        }
        if (settings.containsKey("detector")) {
            made.setSendLatencyFaultEnable(true);
            made.setStartDetectorEnable(true);
        }
        made.start();
        return made;
    }

    @SuppressWarnings("deprecation")
    private void produce() throws Exception {
        DefaultMQProducer producer = producer();
        while (true) {
            long started = System.currentTimeMillis();
            String outcome;
            try {
                outcome = producer.send(new Message(topic, name.getBytes())).getSendStatus().toString();
            } catch (Exception problem) {
                outcome = (problem + " " + problem.getCause()).replaceAll("\\s+", " ");
            }
            boolean done = outcome.equals(SendStatus.SEND_OK.toString());
            print((done ? "ACK " : "ERROR ") + name + " " + started + " " + System.currentTimeMillis() + " " + outcome);
            if (!done && settings.containsKey("refresh")) {
                producer.getDefaultMQProducerImpl().getMqClientFactory().updateTopicRouteInfoFromNameServer(topic);
            }
            if (!done && settings.containsKey("anew")) {
                producer.shutdown();
                producer = producer();
            }
            Thread.sleep(PAUSE_MS);
        }
    }

    private void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("settings-" + name);
        common(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            print("GOT " + name + " " + System.currentTimeMillis() + " " + messages.get(0).getStoreHost().toString().replaceAll(".*/", ""));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static synchronized void print(String line) {
        System.out.println(line);
    }
}
