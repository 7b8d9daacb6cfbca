import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Cases of what our brokers do not do: a clear answer at once, and nothing stored. */
final class Refused {
    private static final long SOON_MS = 3000;

    private Refused() {
    }

    static void list(Map<String, Cases.Case> all) {
        all.put("timer", Refused::timer);
        all.put("pop", Refused::pop);
    }

    private interface Send {
        void run() throws Exception;
    }

    /** The broker's words, which come before the client has waited or tried again. */
    private static void refused(int code, String words, Send send) throws Exception {
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
        Cases.same("code", code, refusal.getResponseCode());
        Cases.same("remark", words, refusal.getErrorMessage());
        Cases.check("the answer came soon", System.currentTimeMillis() - started < SOON_MS);
    }

    private static void isEmpty(Cases cases, String topic) throws Exception {
        cases.admin.examineTopicStats(topic).getOffsetTable()
            .forEach((queue, offsets) -> Cases.same("messages in " + queue, 0L, offsets.getMaxOffset()));
    }

    /** Times that lie further ahead than timerMaxDelaySec. */
    private static void timer(Cases cases, String topic) throws Exception {
        long fourDaysMs = TimeUnit.DAYS.toMillis(4);
        String words = "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
            + "or if set del msg, the delay time should be bigger than the current time";
        DefaultMQProducer producer = Clients.producer(cases);
        Message inMs = Clients.message(topic, "ms"), inSec = Clients.message(topic, "s"), at = Clients.message(topic, "at");
        inMs.setDelayTimeMs(fourDaysMs);
        inSec.setDelayTimeSec(fourDaysMs / 1000);
        at.setDeliverTimeMs(System.currentTimeMillis() + fourDaysMs);
        for (Message message : List.of(inMs, inSec, at)) {
            refused(ResponseCode.MESSAGE_ILLEGAL, words, () -> producer.send(message));
        }
        producer.shutdown();
        isEmpty(cases, topic);
    }

    /** What a consumer that pops asks: for its queues, and for messages. */
    @SuppressWarnings("deprecation") // the other consumers do not show their client
    private static void pop(Cases cases, String topic) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("group-" + topic);
        consumer.setNamesrvAddr(cases.nameServer);
        consumer.setInstanceName(Clients.name("pop"));
        consumer.start();
        MQClientAPIImpl client =
            consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().getMQClientAPIImpl();
        String words = " request type %d not supported", group = "group-" + topic, address = cases.master();
        long patienceMs = 2 * SOON_MS;
        refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, String.format(words, RequestCode.QUERY_ASSIGNMENT),
            () -> client.queryAssignment(address, topic, group, "client", "AVG", MessageModel.CLUSTERING, patienceMs));
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(1);
        header.setInvisibleTime(60_000);
        header.setPollTime(patienceMs);
        header.setBornTime(System.currentTimeMillis());
        refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, String.format(words, RequestCode.POP_MESSAGE), () -> {
            CompletableFuture<Exception> answer = new CompletableFuture<>();
            client.popMessageAsync("broker-a", address, header, patienceMs, new PopCallback() {
                @Override
                public void onSuccess(PopResult result) {
                    answer.complete(new IllegalStateException("it was taken"));
                }

                @Override
                public void onException(Throwable failure) {
                    answer.complete((Exception) failure);
                }
            });
            throw answer.get();
        });
        consumer.shutdown();
    }
}
