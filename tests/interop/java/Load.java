import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Load for benchmarks, one JVM for all of a run, so that its code is warm. Argument: the name server. Standard input has
 * one command a line:
 *   send TOPIC THREADS PER_REQUEST BYTES WARM_S SECONDS   blocking sends; PER_REQUEST above 1 makes batches
 *   paced TOPIC RATE BYTES WARM_S SECONDS                 so many a second from PACED_THREADS threads, and a consumer
 *   timed TOPIC THREADS BYTES WARM_S SECONDS DELAY_MS     as send, of messages that come after DELAY_MS
 *   due TOPIC THREADS COUNT BYTES AHEAD_S                 sends COUNT messages that are due in one and the same second,
 *                                                         AHEAD_S from now; p50, p99 and max are how much later the
 *                                                         broker stored each to be consumed
 *   consume TOPIC COUNT                                   a new group reads so many from the beginning
 * Prints "GO" when what is measured begins and "DONE key=value ..." when it is over; times in microseconds.
 */
public final class Load {
    private static final int PACED_THREADS = 4;
    private static final long NANOS = 1_000_000_000L;

    private static String nameServer;
    private static DefaultMQProducer producer;
    private static int groups;
    private static volatile long delayMs;

    public static void main(String[] arguments) throws Exception {
        nameServer = arguments[0];
        producer = new DefaultMQProducer("load-producers");
        producer.setNamesrvAddr(nameServer);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "send" -> send(words[1], number(words[2]), number(words[3]), number(words[4]), number(words[5]), number(words[6]));
                case "paced" -> paced(words[1], number(words[2]), number(words[3]), number(words[4]), number(words[5]));
                case "timed" -> {
                    delayMs = number(words[6]);
                    send(words[1], number(words[2]), 1, number(words[3]), number(words[4]), number(words[5]));
                    delayMs = 0;
                }
                case "due" -> due(words[1], number(words[2]), number(words[3]), number(words[4]), number(words[5]));
                case "consume" -> consume(words[1], Long.parseLong(words[2]));
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static int number(String text) {
        return Integer.parseInt(text);
    }

    /** What one thread has seen while it counted. */
    private static final class Seen {
        long[] nanos = new long[1 << 16];
        int count;
        long everything;
        long failures;

        void add(long taken) {
            if (count == nanos.length) {
                nanos = Arrays.copyOf(nanos, 2 * count);
            }
            nanos[count++] = taken;
        }
    }

    private static final class Senders {
        final AtomicBoolean counting = new AtomicBoolean();
        final AtomicBoolean over = new AtomicBoolean();
        final List<Seen> all = new ArrayList<>();
        final List<Thread> threads = new ArrayList<>();
        volatile String reason = "-";

        /** A thread that sends requests of `size` messages, one each `intervalNanos` (0: one after the other). */
        void add(String topic, int size, int bytes, long intervalNanos) {
            Seen seen = new Seen();
            all.add(seen);
            Thread thread = new Thread(() -> run(seen, topic, size, new byte[bytes], intervalNanos));
            threads.add(thread);
            thread.start();
        }

        private void run(Seen seen, String topic, int size, byte[] body, long intervalNanos) {
            long due = System.nanoTime();
            while (!over.get()) {
                if (intervalNanos > 0) {
                    due += intervalNanos;
                    long left = due - System.nanoTime();
                    if (left > 0) {
                        java.util.concurrent.locks.LockSupport.parkNanos(left);
                    }
                }
                long started = System.nanoTime();
                boolean done = false;
                try {
                    SendStatus status = (size == 1 ? producer.send(message(topic, body)) : producer.send(batch(topic, size, body))).getSendStatus();
                    done = status == SendStatus.SEND_OK;
                    reason = done ? reason : status.toString();
                } catch (Exception problem) {
                    reason = problem.toString().replaceAll("\\s+", "_");
                }
                long taken = System.nanoTime() - started;
                if (done) {
                    seen.everything += size;
                }
                if (counting.get()) {
                    if (done) {
                        seen.add(taken);
                    } else {
                        seen.failures++;
                    }
                }
            }
        }

        /** Let them run, count for a while, print what was seen and `more`. */
        void measure(int size, int warmSeconds, int seconds, Runnable go, java.util.function.Supplier<String> more) throws InterruptedException {
            Thread.sleep(warmSeconds * 1000L);
            go.run();
            say("GO");
            long started = System.nanoTime();
            counting.set(true);
            Thread.sleep(seconds * 1000L);
            counting.set(false);
            double taken = (System.nanoTime() - started) / (double) NANOS;
            String added = more.get();
            over.set(true);
            for (Thread thread : threads) {
                thread.join();
            }
            long[] nanos = all.stream().flatMapToLong(seen -> Arrays.stream(seen.nanos, 0, seen.count)).sorted().toArray();
            long failures = all.stream().mapToLong(seen -> seen.failures).sum();
            long everything = all.stream().mapToLong(seen -> seen.everything).sum();
            say("DONE count=" + (long) nanos.length * size + " seconds=" + taken + " everything=" + everything + " failures=" + failures + " reason=" + reason
                + " p50=" + share(nanos, 0.5) + " p99=" + share(nanos, 0.99) + " max=" + share(nanos, 1) + added);
        }
    }

    private static Message message(String topic, byte[] body) {
        Message message = new Message(topic, body);
        if (delayMs > 0) {
            message.setDelayTimeMs(delayMs);
        }
        return message;
    }

    private static void due(String topic, int threads, int count, int bytes, int aheadSeconds) throws Exception {
        Seen late = new Seen();
        CountDownLatch all = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = consumer(topic, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, (messages, context) -> {
            synchronized (late) {
                for (MessageExt message : messages) {
                    String due = message.getUserProperty("due");
                    if (due != null) {
                        late.add((message.getStoreTimestamp() - Long.parseLong(due)) * 1_000_000L);
                        all.countDown();
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long base = System.currentTimeMillis() + aheadSeconds * 1000L;
        AtomicLong next = new AtomicLong();
        List<Thread> senders = new ArrayList<>();
        for (int place = 0; place < threads; place++) {
            Thread sender = new Thread(() -> {
                for (long number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                    long at = base + number * 1000 / count;
                    Message message = new Message(topic, new byte[bytes]);
                    message.putUserProperty("due", Long.toString(at));
                    message.setDeliverTimeMs(at);
                    try {
                        while (producer.send(message).getSendStatus() != SendStatus.SEND_OK) {
                            message.putUserProperty("again", "1");
                        }
                    } catch (Exception problem) {
                        throw new IllegalStateException(problem);
                    }
                }
            });
            senders.add(sender);
            sender.start();
        }
        for (Thread sender : senders) {
            sender.join();
        }
        long left = base - System.currentTimeMillis();
        say("GO");
        all.await();
        consumer.shutdown();
        long[] nanos = Arrays.stream(late.nanos, 0, late.count).sorted().toArray();
        say("DONE count=" + count + " seconds=1 everything=" + late.count + " failures=0 reason=- sent_ahead_ms=" + left
            + " min=" + nanos[0] / 1000 + " p50=" + share(nanos, 0.5) + " p99=" + share(nanos, 0.99) + " max=" + share(nanos, 1));
    }

    private static List<Message> batch(String topic, int size, byte[] body) {
        List<Message> messages = new ArrayList<>(size);
        for (int place = 0; place < size; place++) {
            messages.add(new Message(topic, body));
        }
        return messages;
    }

    private static long share(long[] nanos, double part) {
        return nanos.length == 0 ? -1 : nanos[(int) Math.max(0, Math.ceil(nanos.length * part) - 1)] / 1000;
    }

    private static void send(String topic, int threads, int size, int bytes, int warmSeconds, int seconds) throws Exception {
        Senders senders = new Senders();
        for (int place = 0; place < threads; place++) {
            senders.add(topic, size, bytes, 0);
        }
        senders.measure(size, warmSeconds, seconds, () -> { }, () -> "");
    }

    private static void paced(String topic, int rate, int bytes, int warmSeconds, int seconds) throws Exception {
        AtomicLong count = new AtomicLong();
        AtomicLong millis = new AtomicLong();
        DefaultMQPushConsumer consumer = consumer(topic, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, (messages, context) -> {
            long now = System.currentTimeMillis();
            for (MessageExt message : messages) {
                millis.addAndGet(now - message.getStoreTimestamp());
                count.incrementAndGet();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Senders senders = new Senders();
        for (int place = 0; place < PACED_THREADS; place++) {
            senders.add(topic, 1, bytes, NANOS * PACED_THREADS / rate);
        }
        senders.measure(1, warmSeconds, seconds, () -> {
            count.set(0);
            millis.set(0);
        }, () -> " consumed=" + count.get() + " delay=" + (count.get() == 0 ? -1 : millis.get() * 1000 / count.get()));
        consumer.shutdown();
    }

    private static void consume(String topic, long wanted) throws Exception {
        AtomicLong count = new AtomicLong();
        AtomicLong first = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(topic, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, (messages, context) -> {
            if (first.get() == 0 && first.compareAndSet(0, System.nanoTime())) {
                say("GO");
            }
            if (count.addAndGet(messages.size()) >= wanted) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        done.await();
        say("DONE count=" + count.get() + " seconds=" + (System.nanoTime() - first.get()) / (double) NANOS);
        consumer.shutdown();
    }

    private static DefaultMQPushConsumer consumer(String topic, ConsumeFromWhere from, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer("load-consumers-" + ++groups);
        made.setNamesrvAddr(nameServer);
        made.setInstanceName("consumer-" + groups);
        made.setConsumeFromWhere(from);
        made.subscribe(topic, "*");
        made.registerMessageListener(listener);
        made.start();
        return made;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }
}
