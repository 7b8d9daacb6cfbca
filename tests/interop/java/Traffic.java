import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Every way to send and every kind of consumer at work while the master is killed: what was acknowledged reaches all of them. */
final class Traffic {
    private static final int PART = 100;
    private static final int PAUSE_MS = 25;
    private static final int BATCH = 5;

    interface Attempt {
        SendStatus send(String body) throws Exception;
    }

    private Traffic() {
    }

    static void run(Cases cases, String topic) throws Exception {
        DefaultMQProducer producer = Clients.producer(cases);
        producer.setSendMsgTimeout(3000);
        Clients.send(producer, Clients.message(topic, "first"));
        List<DefaultMQPushConsumer> push = new ArrayList<>();
        Map<String, Clients.Got> all = new HashMap<>();
        for (String kind : List.of("concurrent", "orderly", "broadcast 1", "broadcast 2")) {
            DefaultMQPushConsumer consumer = Clients.push(cases, kind.split(" ")[0] + "-" + topic);
            all.put(kind, kind.equals("orderly") ? Clients.orderly(consumer, message -> true) : Clients.concurrently(consumer));
            if (kind.startsWith("broadcast")) {
                consumer.setMessageModel(MessageModel.BROADCASTING);
            }
            consumer.subscribe(topic, "*");
            consumer.start();
            push.add(consumer);
        }
        DefaultLitePullConsumer lite = Clients.pull(cases, "lite-" + topic);
        lite.subscribe(topic, "*");
        lite.start();
        Clients.Got pulled = new Clients.Got();
        Thread reader = new Thread(() -> {
            while (lite.isRunning()) {
                pulled.messages.addAll(lite.poll(200));
            }
        });
        reader.start();
        all.put("lite", pulled);
        for (Map.Entry<String, Clients.Got> got : all.entrySet()) {
            Cases.until(got.getKey() + " works", () -> got.getValue().bodies().contains("first"));
        }

        Set<String> acknowledged = new ConcurrentSkipListSet<>();
        Set<String> tried = new ConcurrentSkipListSet<>();
        List<Thread> senders = new ArrayList<>();
        senders.add(sender(cases, "sync", tried, acknowledged, body -> producer.send(Clients.message(topic, body)).getSendStatus()));
        senders.add(sender(cases, "async", tried, acknowledged, body -> async(producer, Clients.message(topic, body))));
        senders.add(sender(cases, "selector", tried, acknowledged, body ->
            producer.send(Clients.message(topic, body), new SelectMessageQueueByHash(), 3).getSendStatus()));
        senders.add(sender(cases, "batch", tried, acknowledged, body -> producer.send(batch(topic, body)).getSendStatus()));
        cases.death.awaitComing(topic);
        senders.forEach(Thread::start);
        for (Thread sender : senders) {
            sender.join();
        }
        Cases.same("acknowledged", tried, acknowledged);
        for (Map.Entry<String, Clients.Got> got : all.entrySet()) {
            Cases.until(got.getKey() + " has all", () -> got.getValue().bodies().containsAll(bodies(acknowledged)));
        }
        inOrder(all.get("orderly"));
        push.forEach(DefaultMQPushConsumer::shutdown);
        lite.shutdown();
        reader.join();
        producer.shutdown();
    }

    /** What was sent under these names. */
    private static Set<String> bodies(Set<String> names) {
        Set<String> found = new TreeSet<>();
        for (String name : names) {
            for (int place = 0; place < BATCH; place++) {
                found.add(name.startsWith("batch") ? name + "/" + place : name);
            }
        }
        return found;
    }

    /** Tries each message until it is acknowledged: through the master's death and a part after it. */
    private static Thread sender(Cases cases, String name, Set<String> tried, Set<String> acknowledged, Attempt attempt) {
        return new Thread(() -> {
            int after = 0;
            for (int number = 0; after < PART; number++) {
                String body = name + number;
                tried.add(body);
                long deadline = System.currentTimeMillis() + 300_000;
                while (!acknowledged.contains(body) && System.currentTimeMillis() < deadline) {
                    try {
                        if (attempt.send(body) == SendStatus.SEND_OK) {
                            acknowledged.add(body);
                        }
                    } catch (Exception again) {
                        pause(100);
                    }
                }
                after += cases.death.isOver() ? 1 : 0;
                pause(PAUSE_MS);
            }
        });
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    private static SendStatus async(DefaultMQProducer producer, Message message) throws Exception {
        CompletableFuture<SendStatus> answer = new CompletableFuture<>();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                answer.complete(result.getSendStatus());
            }

            @Override
            public void onException(Throwable failure) {
                answer.completeExceptionally(failure);
            }
        });
        return answer.get();
    }

    private static List<Message> batch(String topic, String body) {
        List<Message> found = new ArrayList<>();
        for (int place = 0; place < BATCH; place++) {
            found.add(Clients.message(topic, body + "/" + place));
        }
        return found;
    }

    /** The first time that each offset came, offsets of a queue rise. */
    private static void inOrder(Clients.Got got) {
        Map<Integer, Long> last = new HashMap<>();
        for (MessageExt message : got.messages) {
            long before = last.getOrDefault(message.getQueueId(), -1L);
            Cases.check("queue " + message.getQueueId() + ": offset " + message.getQueueOffset() + " after " + before,
                message.getQueueOffset() <= before + 1);
            last.put(message.getQueueId(), Math.max(before, message.getQueueOffset()));
        }
    }
}
