import java.io.BufferedWriter;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TimeoutException;

/**
 * A Java consumer of the group under test: the same as `peers.Peer`, with Kafka's own client. It ends when its standard
 * input does.
 *
 * Lines on standard output: "record TOPIC PARTITION OFFSET BASE64 MS" for each record that was handed on, and
 * "exposed TOPIC PARTITION FIRST END" for what had been read and could not be committed when the partition was lost.
 */
public final class JavaPeer implements ConsumerRebalanceListener {
    private static final long COMMIT_EVERY_MS = 1_000;
    private static final long LAST_COMMIT_MS = 20_000;

    private final BufferedWriter out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
    private final KafkaConsumer<byte[], byte[]> consumer;
    /** Owned and read from: one past the last record that was handed on. */
    private final Map<TopicPartition, Long> readTo = new HashMap<>();
    /** The same partitions: where this ownership is known to the group, or began. */
    private final Map<TopicPartition, Long> committed = new HashMap<>();

    private JavaPeer(KafkaConsumer<byte[], byte[]> consumer) {
        this.consumer = consumer;
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
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings(args[0], args[1]))) {
            new JavaPeer(consumer).run(List.of(args[2].split(",")), leaving);
        }
    }

    private static Properties settings(String bootstrap, String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("session.timeout.ms", "10000");
        settings.put("heartbeat.interval.ms", "1000");
        settings.put("metadata.max.age.ms", "2000");
        settings.put("default.api.timeout.ms", "5000");
        return settings;
    }

    private void run(List<String> topics, AtomicBoolean leaving) throws Exception {
        consumer.subscribe(topics, this);
        long committedAtMs = 0;
        while (!leaving.get()) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                handOn(record);
            }
            out.flush();
            if (System.currentTimeMillis() - committedAtMs > COMMIT_EVERY_MS) {
                committedAtMs = System.currentTimeMillis();
                commit(readTo.keySet());
            }
        }
        commitInTime(List.copyOf(readTo.keySet()));
    }

    private void handOn(ConsumerRecord<byte[], byte[]> record) throws Exception {
        TopicPartition tp = new TopicPartition(record.topic(), record.partition());
        String value = Base64.getEncoder().encodeToString(record.value());
        out.write("record " + tp.topic() + " " + tp.partition() + " " + record.offset() + " " + value + " "
            + System.currentTimeMillis() + "\n");
        committed.putIfAbsent(tp, record.offset());
        readTo.put(tp, record.offset() + 1);
    }

    /** Commit what was handed on; whether all of it was acknowledged. */
    private boolean commit(Collection<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> ahead = new HashMap<>();
        for (TopicPartition tp : partitions) {
            if (readTo.containsKey(tp) && readTo.get(tp) > committed.get(tp)) {
                ahead.put(tp, new OffsetAndMetadata(readTo.get(tp)));
            }
        }
        if (ahead.isEmpty()) {
            return true;
        }
        try {
            consumer.commitSync(ahead, Duration.ofSeconds(5));
        } catch (CommitFailedException | RebalanceInProgressException | TimeoutException refused) {
            return false;
        } catch (RetriableException refused) {
            return false;
        }
        ahead.forEach((tp, offset) -> committed.put(tp, offset.offset()));
        return true;
    }

    private void commitInTime(Collection<TopicPartition> partitions) throws InterruptedException {
        long untilMs = System.currentTimeMillis() + LAST_COMMIT_MS;
        while (!commit(partitions) && System.currentTimeMillis() < untilMs) {
            Thread.sleep(200);
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) { }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        try {
            commitInTime(partitions);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        partWith(partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        partWith(partitions);
    }

    /** No longer own `partitions`; what of them the group does not know is exposed. */
    private void partWith(Collection<TopicPartition> partitions) {
        try {
            for (TopicPartition tp : partitions) {
                Long end = readTo.remove(tp);
                Long first = committed.remove(tp);
                if (end != null && end > first) {
                    out.write("exposed " + tp.topic() + " " + tp.partition() + " " + first + " " + end + "\n");
                }
            }
            out.flush();
        } catch (java.io.IOException broken) {
            throw new java.io.UncheckedIOException(broken);
        }
    }
}
