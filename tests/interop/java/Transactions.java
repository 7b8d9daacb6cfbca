import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactions of which the body's first word says how they end: "commit" and "rollback" at once, "unknown.commit" and
 * "unknown.rollback" when the broker asks, "late" only when another master asks, "never". Rounds: in each, all kinds are sent
 * and what can end is waited for, then the line "SWITCH" asks for another master; meanwhile transactions go on.
 * Prints "CHECK body" for each question, and at the end "TWICE count" for messages consumed more than once, and "DONE".
 * Arguments: name server, topic, number of rounds.
 */
public final class Transactions {
    private static final int EACH = 5;
    private static final int PAUSE_MS = 20;
    /** One pass of Apache's broker over what it is to ask about may last a minute, in which it stores nothing back. */
    private static final long PATIENCE_MS = 300_000;

    private final TransactionMQProducer producer = new TransactionMQProducer("transactions", Account.hook());
    private final String topic;
    private final Set<String> wanted = ConcurrentHashMap.newKeySet();
    private final ConcurrentLinkedQueue<String> got = new ConcurrentLinkedQueue<>();
    private final Set<String> checked = ConcurrentHashMap.newKeySet();
    private volatile String oldMaster = "";

    private Transactions(String topic) {
        this.topic = topic;
    }

    public static void main(String[] arguments) throws Exception {
        Transactions found = new Transactions(arguments[1]);
        try {
            found.start(arguments[0]);
            for (int round = 0; round < Integer.parseInt(arguments[2]); round++) {
                found.round(round);
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.out.println("TWICE " + (found.got.size() - new TreeSet<>(found.got).size()));
        System.out.println("DONE");
        System.exit(0);
    }

    private void start(String nameServer) throws Exception {
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer");
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                String kind = kind(message);
                if (kind.equals("commit")) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
                return kind.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return check(message);
            }
        });
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("transactions-" + topic, Account.hook());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer");
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> got.add(text(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        until("the first transaction", () -> send("commit first"));
        consumer.start();
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static String kind(Message message) {
        return text(message).split(" ")[0];
    }

    private LocalTransactionState check(MessageExt message) {
        System.out.println("CHECK " + text(message));
        checked.add(text(message));
        switch (kind(message)) {
            case "commit":
            case "unknown.commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
            case "unknown.rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "late":
                return master().equals(oldMaster) ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    @SuppressWarnings("deprecation")
    private String master() {
        String found = producer.getDefaultMQProducerImpl().getMqClientFactory().findBrokerAddressInPublish("broker-a");
        return found == null ? oldMaster : found;
    }

    private boolean send(String body) {
        try {
            Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
            if (producer.sendMessageInTransaction(message, null).getSendStatus() != SendStatus.SEND_OK) {
                return false;
            }
        } catch (MQClientException failure) {
            return false;
        }
        if (!body.contains("rollback") && !body.startsWith("never")) {
            wanted.add(body);
        }
        return true;
    }

    private void round(int round) throws Exception {
        oldMaster = master();
        for (String kind : List.of("commit", "rollback", "unknown.commit", "unknown.rollback", "late", "never")) {
            for (int number = 0; number < EACH; number++) {
                String body = kind + " " + round + " " + number;
                until(body, () -> send(body));
            }
        }
        until("what can end", () -> got.containsAll(without("late " + round)) && checked.contains("late " + round + " 0"));
        System.out.println("SWITCH");
        for (int number = 0; master().equals(oldMaster); number++) {
            send("commit through " + round + " " + number);
            Thread.sleep(PAUSE_MS);
        }
        for (int number = 0; number < EACH; number++) {
            String body = "commit after " + round + " " + number;
            until(body, () -> send(body));
        }
        checked.clear();
        until("all that were committed", () -> got.containsAll(wanted));
        until("the other one asks", () -> checked.contains("never 0 0"));
        Set<String> more = new TreeSet<>(got);
        more.removeAll(wanted);
        // the answer to a send may be lost with its master: such a transaction ends too, as it likes
        more.removeIf(body -> body.startsWith("commit through"));
        if (!more.isEmpty()) {
            throw new IllegalStateException("never committed: " + more);
        }
    }

    private Set<String> without(String prefix) {
        Set<String> found = new TreeSet<>(wanted);
        found.removeIf(body -> body.startsWith(prefix));
        return found;
    }

    private void until(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.call()) {
            if (System.currentTimeMillis() > deadline) {
                Set<String> missing = new TreeSet<>(wanted);
                missing.removeAll(got);
                throw new IllegalStateException("not in time: " + what + ", missing " + missing);
            }
            Thread.sleep(PAUSE_MS);
        }
    }
}
