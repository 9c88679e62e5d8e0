import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's own assignor on one case, one JSON object for each run: TOPICS PARTITIONS LEAVERS REPETITIONS. On standard
 * input a line for each member: the numbers of its topics.
 */
public class JavaAssignor {
    public static void main(String[] arguments) throws Exception {
        int topics = Integer.parseInt(arguments[0]), partitions = Integer.parseInt(arguments[1]);
        int leavers = Integer.parseInt(arguments[2]), repetitions = Integer.parseInt(arguments[3]);
        Map<String, List<PartitionInfo>> metadata = metadata(topics, partitions);
        List<List<String>> wanted = wanted();
        int members = wanted.size();
        for (int repetition = 0; repetition < repetitions; repetition++) {
            Map<String, Subscription> everybody = new HashMap<>();
            for (int member = 0; member < members; member++) everybody.put(name('m', member), new Subscription(wanted.get(member)));
            long began = cpuNs();
            Map<String, List<TopicPartition>> before = new CooperativeStickyAssignor().assignPartitions(metadata, everybody);
            double fresh = (cpuNs() - began) / 1e9;
            Map<String, Subscription> stay = new HashMap<>();
            for (int member = 0; member < members; member++) {
                String id = name('m', member);
                if (member % (members / leavers) != 1)
                    stay.put(id, new Subscription(wanted.get(member), null, before.get(id), 1, Optional.empty()));
            }
            began = cpuNs();
            Map<String, List<TopicPartition>> after = new CooperativeStickyAssignor().assignPartitions(metadata, stay);
            double left = (cpuNs() - began) / 1e9;
            int least = Integer.MAX_VALUE, most = 0, moved = 0;
            for (Map.Entry<String, List<TopicPartition>> each : after.entrySet()) {
                least = Math.min(least, each.getValue().size());
                most = Math.max(most, each.getValue().size());
                Set<TopicPartition> gone = new HashSet<>(before.get(each.getKey()));
                gone.removeAll(new HashSet<>(each.getValue()));
                moved += gone.size();
            }
            System.out.printf(Locale.ROOT, "{\"fresh_s\": %f, \"left_s\": %f, \"least\": %d, \"most\": %d, "
                + "\"moved\": %d, \"peak_mib\": %d}%n", fresh, left, least, most, moved, peakMib());
        }
    }

    private static Map<String, List<PartitionInfo>> metadata(int topics, int partitions) {
        Node node = new Node(0, "host", 9092);
        Node[] replicas = {node};
        Map<String, List<PartitionInfo>> found = new HashMap<>();
        for (int topic = 0; topic < topics; topic++) {
            List<PartitionInfo> all = new ArrayList<>();
            for (int index = 0; index < partitions; index++)
                all.add(new PartitionInfo(name('t', topic), index, node, replicas, replicas));
            found.put(name('t', topic), all);
        }
        return found;
    }

    private static List<List<String>> wanted() throws Exception {
        List<List<String>> found = new ArrayList<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<String> names = new ArrayList<>();
            for (String number : line.split(" ")) names.add(name('t', Integer.parseInt(number)));
            found.add(names);
        }
        return found;
    }

    private static String name(char kind, int number) {
        return String.format("%c%04d", kind, number);
    }

    /** The most memory that this process has had, 0 where the system does not tell. */
    private static long peakMib() throws Exception {
        Path status = Path.of("/proc/self/status");
        if (!Files.exists(status)) return 0;
        for (String line : Files.readAllLines(status))
            if (line.startsWith("VmHWM:")) return Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024;
        return 0;
    }

    private static long cpuNs() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }
}
