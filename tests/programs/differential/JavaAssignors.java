import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's assignors, one JSON object a line in and one a line out, until the input ends.
 *
 * In: {"assignor": NAME, "topics": {TOPIC: [[RACK, ...] for each partition]}, "members": {MEMBER_ID: {"topics": [...],
 * "instance_id": ID?, "rack": RACK?, "owned": [[TOPIC, PARTITION], ...], "generation": N, "user_data": BASE64?}}}
 *
 * Out: {"shares": {MEMBER_ID: [[TOPIC, PARTITION], ...]}, "rounds": N, "user_data": {MEMBER_ID: BASE64}}, where
 * "user_data" is what the members of the sticky assignor send next; or {"error": WORDS}. A cooperative group rebalances
 * until nothing changes: all claim what they were assigned in the round before.
 */
public final class JavaAssignors {
    private static final int ROUNDS_MAX = 12;
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        BufferedWriter out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.write(JSON.writeValueAsString(answer(JSON.readTree(line))));
            out.write('\n');
            if (!in.ready()) {
                out.flush();
            }
        }
        out.flush();
    }

    private static ObjectNode answer(JsonNode question) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            String name = question.get("assignor").asText();
            ConsumerPartitionAssignor assignor = assignor(name);
            Cluster cluster = cluster(question.get("topics"));
            JsonNode members = question.get("members");
            Map<String, List<TopicPartition>> owned = new HashMap<>();
            Map<String, Integer> generations = new HashMap<>();
            members.fields().forEachRemaining(member -> {
                owned.put(member.getKey(), partitions(member.getValue().get("owned")));
                generations.put(member.getKey(), member.getValue().get("generation").asInt());
            });
            int round = 0;
            boolean changed = true;
            while (changed && round < ROUNDS_MAX) {
                round++;
                Map<String, List<TopicPartition>> shares = assign(assignor, cluster, members, owned, generations);
                changed = name.equals("cooperative-sticky") && !same(shares, owned);
                owned.putAll(shares);
                int generation = 100 + round;
                generations.replaceAll((member, before) -> generation);
            }
            answer.put("rounds", round);
            tell(answer.putObject("shares"), owned);
            if (name.equals("sticky")) {
                ObjectNode next = answer.putObject("user_data");
                owned.forEach((member, share) -> next.put(member, userData(share)));
            }
        } catch (RuntimeException error) {
            answer.put("error", error.toString());
        }
        return answer;
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static Cluster cluster(JsonNode topics) {
        Map<String, Node> nodes = new LinkedHashMap<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        topics.fields().forEachRemaining(topic -> {
            for (int index = 0; index < topic.getValue().size(); index++) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : topic.getValue().get(index)) {
                    replicas.add(nodes.computeIfAbsent(rack.asText(), r -> new Node(nodes.size(), "host", 1, r)));
                }
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic.getKey(), index, Node.noNode(), all, all));
            }
        });
        return new Cluster("cluster", nodes.values(), partitions, Set.of(), Set.of());
    }

    private static Map<String, List<TopicPartition>> assign(
            ConsumerPartitionAssignor assignor,
            Cluster cluster,
            JsonNode members,
            Map<String, List<TopicPartition>> owned,
            Map<String, Integer> generations) {
        Map<String, Subscription> subscriptions = new HashMap<>();
        members.fields().forEachRemaining(member -> {
            JsonNode told = member.getValue();
            List<String> topics = new ArrayList<>();
            told.get("topics").forEach(topic -> topics.add(topic.asText()));
            ByteBuffer userData =
                    told.hasNonNull("user_data") ? ByteBuffer.wrap(Base64.getDecoder().decode(told.get("user_data").asText())) : null;
            Subscription subscription = new Subscription(
                    topics, userData, owned.get(member.getKey()), generations.get(member.getKey()), text(told.get("rack")));
            subscription.setGroupInstanceId(text(told.get("instance_id")));
            subscriptions.put(member.getKey(), subscription);
        });
        Map<String, List<TopicPartition>> shares = new HashMap<>();
        assignor.assign(cluster, new GroupSubscription(subscriptions))
                .groupAssignment()
                .forEach((member, share) -> shares.put(member, share.partitions()));
        return shares;
    }

    private static boolean same(Map<String, List<TopicPartition>> one, Map<String, List<TopicPartition>> other) {
        return one.keySet().equals(other.keySet())
                && one.entrySet().stream()
                        .allMatch(e -> new HashSet<>(e.getValue()).equals(new HashSet<>(other.get(e.getKey()))));
    }

    private static String userData(List<TopicPartition> share) {
        StickyAssignor member = new StickyAssignor();
        member.onAssignment(new Assignment(share), new ConsumerGroupMetadata("group", 7, "member", Optional.empty()));
        ByteBuffer bytes = member.subscriptionUserData(Set.of());
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        return Base64.getEncoder().encodeToString(copy);
    }

    private static Optional<String> text(JsonNode node) {
        return node == null || node.isNull() ? Optional.empty() : Optional.of(node.asText());
    }

    private static List<TopicPartition> partitions(JsonNode pairs) {
        List<TopicPartition> partitions = new ArrayList<>();
        pairs.forEach(pair -> partitions.add(new TopicPartition(pair.get(0).asText(), pair.get(1).asInt())));
        return partitions;
    }

    private static void tell(ObjectNode to, Map<String, List<TopicPartition>> shares) {
        shares.forEach((member, share) -> {
            ArrayNode pairs = to.putArray(member);
            share.forEach(partition -> pairs.addArray().add(partition.topic()).add(partition.partition()));
        });
    }
}
