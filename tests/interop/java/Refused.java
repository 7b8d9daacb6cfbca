import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/** Cases of what our brokers do not do: a clear answer at once, and nothing stored. */
final class Refused {
    private static final long SOON_MS = 10_000;

    private Refused() {
    }

    static void list(Map<String, Cases.Case> all) {
        all.put("timer", Refused::timer);
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
}
