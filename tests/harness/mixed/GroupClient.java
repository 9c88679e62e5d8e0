import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's own consumer as a member of a group that tells, one JSON object a line, what it owns and since when: the
 * lines of `kgroup member --json`. It leaves the group when its standard input ends.
 *
 * Arguments: bootstrap servers, group, topic, client id, group protocol, instance id (may be empty), session timeout in
 * ms (of the classic protocol).
 */
public final class GroupClient implements ConsumerRebalanceListener {
    private static final String BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer";

    private final TreeSet<Integer> owned = new TreeSet<>();
    private final String topic;

    private GroupClient(String topic) {
        this.topic = topic;
    }

    public static void main(String[] args) throws Exception {
        AtomicBoolean leaving = new AtomicBoolean();
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() != -1) { }
            } catch (java.io.IOException ended) {
                // as good as its end
            }
            leaving.set(true);
        });
        watch.setDaemon(true);
        watch.start();
        GroupClient client = new GroupClient(args[2]);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings(args))) {
            consumer.subscribe(List.of(args[2]), client);
            while (!leaving.get()) {
                consumer.poll(Duration.ofMillis(100));
            }
            client.owned.clear();
            client.tell("leaving");
        }
    }

    private static Properties settings(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("client.id", args[3]);
        settings.put("group.protocol", args[4]);
        if (!args[5].isEmpty()) {
            settings.put("group.instance.id", args[5]);
        }
        if (args[4].equals("classic")) {
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            settings.put("session.timeout.ms", args[6]);
            settings.put("heartbeat.interval.ms", "500");
        }
        settings.put("key.deserializer", BYTES);
        settings.put("value.deserializer", BYTES);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        return settings;
    }

    private void tell(String event) {
        StringBuilder pairs = new StringBuilder();
        for (int partition : owned) {
            pairs.append(pairs.length() == 0 ? "" : ", ").append("[\"" + topic + "\", " + partition + "]");
        }
        long atMs = System.currentTimeMillis();
        System.out.println("{\"event\": \"" + event + "\", \"at_ms\": " + atMs + ", \"partitions\": [" + pairs + "]}");
        System.out.flush();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        partitions.forEach(tp -> owned.add(tp.partition()));
        tell("assigned");
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        partitions.forEach(tp -> owned.remove(tp.partition()));
        tell("revoked");
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        partitions.forEach(tp -> owned.remove(tp.partition()));
        tell("lost");
    }
}
