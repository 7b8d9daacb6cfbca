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
    private static final int COUNT = 300;
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
        for (String kind : List.of("concurrent", "orderly", "broadcast")) {
            DefaultMQPushConsumer consumer = Clients.push(cases, kind + "-" + topic);
            all.put(kind, kind.equals("orderly") ? Clients.orderly(consumer, message -> true) : Clients.concurrently(consumer));
            if (kind.equals("broadcast")) {
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
        List<Thread> senders = new ArrayList<>();
        senders.add(sender("sync", acknowledged, body -> producer.send(Clients.message(topic, body)).getSendStatus()));
        senders.add(sender("async", acknowledged, body -> async(producer, Clients.message(topic, body))));
        senders.add(sender("selector", acknowledged, body ->
            producer.send(Clients.message(topic, body), new SelectMessageQueueByHash(), 3).getSendStatus()));
        senders.add(sender("batch", acknowledged, body -> producer.send(batch(topic, body)).getSendStatus()));
        senders.forEach(Thread::start);
        Cases.until("a third is sent", () -> acknowledged.size() > COUNT * senders.size() / 3);
        String master = cases.master();
        System.out.println("KILL");
        for (Thread sender : senders) {
            sender.join();
        }
        Cases.same("acknowledged", COUNT * senders.size(), acknowledged.size());
        Cases.check("the master was not killed meanwhile", !master.equals(cases.master()));
        for (Map.Entry<String, Clients.Got> got : all.entrySet()) {
            Cases.until(got.getKey() + " has all", () -> bodies(got.getValue()).containsAll(acknowledged));
        }
        inOrder(all.get("orderly"));
        push.forEach(DefaultMQPushConsumer::shutdown);
        lite.shutdown();
        reader.join();
        producer.shutdown();
    }

    private static Set<String> bodies(Clients.Got got) {
        Set<String> found = new TreeSet<>();
        got.bodies().forEach(body -> found.add(body.replaceAll("/.*", "")));
        return found;
    }

    /** Tries each message until it is acknowledged. */
    private static Thread sender(String name, Set<String> acknowledged, Attempt attempt) {
        return new Thread(() -> {
            for (int number = 0; number < COUNT; number++) {
                String body = name + number;
                long deadline = System.currentTimeMillis() + 60_000;
                while (!acknowledged.contains(body) && System.currentTimeMillis() < deadline) {
                    try {
                        if (attempt.send(body) == SendStatus.SEND_OK) {
                            acknowledged.add(body);
                        }
                    } catch (Exception again) {
                        pause(100);
                    }
                }
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
