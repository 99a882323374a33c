import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Produces a record for each key of a JSON array, with Kafka's own defaults, and prints their partitions as another. */
public class Produce {
    public static void main(String[] arguments) throws Exception {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
        var json = new ObjectMapper();
        var keys = json.readValue(System.in, String[].class);
        var partitions = new int[keys.length];
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0]);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < keys.length; i++) {
                partitions[i] = producer.send(new ProducerRecord<>(arguments[1], keys[i], "")).get().partition();
            }
        }
        System.out.println(json.writeValueAsString(partitions));
    }
}
