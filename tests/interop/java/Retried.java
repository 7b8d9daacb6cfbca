import org.apache.rocketmq.client.exception.MQClientException;

/**
 * Work that begins with the start of a consumer: a client that gets no answer of the name server within three seconds, as
 * on a busy machine, gives its start up for good, and another one is made.
 */
interface Retried {
    int TRIES = 10;

    void work() throws Exception;

    static void run(Retried retried) throws Exception {
        for (int tries = 1; ; tries++) {
            try {
                retried.work();
                return;
            } catch (MQClientException | IllegalStateException failure) {
                if (tries == TRIES) {
                    throw failure;
                }
                failure.printStackTrace();
            }
        }
    }
}
