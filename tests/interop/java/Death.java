import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** The master's death in the middle of a round, which all cases of the round wait for. */
final class Death {
    private final Set<String> ready = ConcurrentHashMap.newKeySet();
    private volatile boolean coming;
    private volatile boolean over;

    /** From now on it may come. */
    void ready(String topic) {
        ready.add(topic);
    }

    /** Returns when it is asked for: it comes a moment later. */
    void awaitComing(String topic) throws Exception {
        ready(topic);
        Cases.until("the master's death", () -> coming);
    }

    void awaitOver(String topic) throws Exception {
        ready(topic);
        Cases.until("the end of the master's death", () -> over);
    }

    boolean isOver() {
        return over;
    }

    /** Asks for it by the line "KILL" once all are ready or have failed; returns when clients are told of another master. */
    void come(Cases cases, Set<String> topics) throws Exception {
        Cases.until("all are ready for the master's death", () -> ready.containsAll(topics));
        String before = cases.master();
        System.out.println("KILL");
        coming = true;
        Cases.until("another master", () -> {
            String found = cases.master();
            return found != null && !found.equals(before);
        });
        over = true;
    }
}
