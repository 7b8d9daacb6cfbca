import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/** Cases of what our brokers do not do: a clear answer at once, and nothing stored. */
final class Refused {
    private static final long SOON_MS = 3000;

    private Refused() {
    }

    static void list(Map<String, Cases.Case> all) {
        all.put("transaction", Refused::transaction);
        all.put("timer", Refused::timer);
        all.put("pop", Refused::pop);
    }

    private interface Send {
        void run() throws Exception;
    }

    /** The broker's words, which come before the client has waited or tried again. */
    private static void refused(String words, Send send) throws Exception {
        long started = System.currentTimeMillis();
        MQBrokerException refusal;
        try {
            send.run();
            throw new IllegalStateException("it was taken: " + words);
        } catch (MQClientException wrapped) {
            refusal = (MQBrokerException) wrapped.getCause();
        } catch (MQBrokerException direct) {
            refusal = direct;
        }
        Cases.same("code", ResponseCode.MESSAGE_ILLEGAL, refusal.getResponseCode());
        Cases.same("remark", words, refusal.getErrorMessage());
        Cases.check("the answer came soon", System.currentTimeMillis() - started < SOON_MS);
    }

    private static void isEmpty(Cases cases, String topic) throws Exception {
        cases.admin.examineTopicStats(topic).getOffsetTable()
            .forEach((queue, offsets) -> Cases.same("messages in " + queue, 0L, offsets.getMaxOffset()));
    }

    private static void transaction(Cases cases, String topic) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("case-transactions");
        producer.setNamesrvAddr(cases.nameServer);
        producer.setInstanceName(Clients.name("transaction"));
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                throw new IllegalStateException("the message was not even taken");
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                throw new IllegalStateException("the message was not even taken");
            }
        });
        producer.start();
        refused("this broker does not take transactional messages",
            () -> producer.sendMessageInTransaction(Clients.message(topic, "half"), null));
        producer.shutdown();
        isEmpty(cases, topic);
    }

    private static void timer(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Message inMs = Clients.message(topic, "ms"), inSec = Clients.message(topic, "s"), at = Clients.message(topic, "at");
        inMs.setDelayTimeMs(5000);
        inSec.setDelayTimeSec(5);
        at.setDeliverTimeMs(System.currentTimeMillis() + 5000);
        for (Message message : List.of(inMs, inSec, at)) {
            refused("this broker does not take timer messages", () -> producer.send(message));
        }
        producer.shutdown();
        isEmpty(cases, topic);
    }

    /** A consumer that asks the broker for its queues (400), as one that pops does, goes on by itself and pulls. */
    private static void pop(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        Clients.numbers(producer, topic, 8);
        producer.shutdown();
        DefaultMQPushConsumer consumer = Clients.push(cases, "group-" + topic);
        consumer.setClientRebalance(false);
        Clients.Got got = Clients.concurrently(consumer);
        consumer.subscribe(topic, "*");
        consumer.start();
        Cases.until("all of " + topic, () -> got.bodies().equals(Clients.numbered(0, 8)));
        consumer.shutdown();
    }
}
