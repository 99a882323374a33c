import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.avro.Conversions;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Reads topics of Ferryman without Ferryman: prints a line of JSON for each record that is there at the start.
 *
 *   mvn -q process-resources
 *   java -cp 'jars/*' Reader.java localhost:9092 http://localhost:8080/apis/registry/v3 payments.events wallet.events
 */
public class Reader implements AutoCloseable {
    private static final DateTimeFormatter MICROS =
            DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSS'Z'").withZone(ZoneOffset.UTC);

    private final ObjectMapper json = new ObjectMapper();
    private final StringDeserializer text = new StringDeserializer();
    private final AvroKafkaDeserializer<GenericRecord> avro = new AvroKafkaDeserializer<>();
    private final KafkaConsumer<String, byte[]> consumer;
    private final Set<String> seen = new HashSet<>();
    private int duplicates = 0;

    public static void main(String[] arguments) throws Exception {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
        try (var reader = new Reader(arguments[0], arguments[1])) {
            reader.read(List.of(arguments).subList(2, arguments.length));
            System.err.println(reader.duplicates + " duplicates dropped");
        }
    }

    Reader(String kafka, String registry) {
        json.getFactory().enable(JsonWriteFeature.ESCAPE_NON_ASCII.mappedFeature());
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", kafka, "enable.auto.commit", false, "isolation.level", "read_committed");
        consumer = new KafkaConsumer<>(settings, text, new ByteArrayDeserializer());
        // The default of this class: five bytes come first, a zero and the id of the schema that wrote the rest.
        avro.configure(Map.of("apicurio.registry.url", registry), false);
        // Return times, dates, decimals and uuids as such, not as numbers and text.
        var known = GenericData.get();
        known.addLogicalTypeConversion(new TimeConversions.TimestampMicrosConversion());
        known.addLogicalTypeConversion(new TimeConversions.TimestampMillisConversion());
        known.addLogicalTypeConversion(new TimeConversions.DateConversion());
        known.addLogicalTypeConversion(new Conversions.DecimalConversion());
        known.addLogicalTypeConversion(new Conversions.UUIDConversion());
    }

    /** Reads every record that is there at the start, each partition in its order. */
    void read(List<String> topics) throws Exception {
        var partitions = topics.stream()
                .flatMap(topic -> consumer.partitionsFor(topic).stream())
                .map(each -> new TopicPartition(each.topic(), each.partition()))
                .toList();
        var ends = consumer.endOffsets(partitions);
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
            for (var record : consumer.poll(Duration.ofSeconds(1))) {
                if (record.offset() < ends.get(new TopicPartition(record.topic(), record.partition()))) {
                    print(record);
                }
            }
        }
    }

    private void print(ConsumerRecord<String, byte[]> record) throws Exception {
        var headers = new LinkedHashMap<String, String>();
        record.headers().forEach(each -> headers.put(each.key(), text.deserialize(record.topic(), each.value())));
        var id = headers.get("ce_id");
        if (id != null && !seen.add(id)) { // a service keeps the ids in its database, in the transaction of the effect
            duplicates++;
            return;
        }
        var line = new LinkedHashMap<String, Object>();
        line.put("topic", record.topic());
        line.put("partition", record.partition());
        line.put("offset", record.offset());
        line.put("key", record.key());
        line.put("headers", headers);
        line.put("data", decoded(record, headers.getOrDefault("content-type", "")));
        System.out.println(json.writeValueAsString(line));
    }

    /** Returns the data; values that are neither Avro nor JSON stay bytes. */
    private Object decoded(ConsumerRecord<String, byte[]> record, String contentType) throws Exception {
        return switch (contentType) {
            case "application/avro" -> plain(avro.deserialize(record.topic(), record.headers(), record.value()));
            case "application/json" -> json.readTree(record.value());
            default -> record.value();
        };
    }

    /** Returns the JSON form: numbers, text, lists and maps; times in UTC to the microsecond, bytes in base64. */
    private static Object plain(Object value) {
        if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long) {
            return value;
        }
        if (value instanceof Float || value instanceof Double) {
            return ((Number) value).doubleValue();
        }
        if (value instanceof GenericRecord record) {
            var fields = new LinkedHashMap<String, Object>();
            record.getSchema().getFields().forEach(each -> fields.put(each.name(), plain(record.get(each.pos()))));
            return fields;
        }
        if (value instanceof Map<?, ?> map) {
            var entries = new LinkedHashMap<String, Object>();
            map.forEach((name, each) -> entries.put(name.toString(), plain(each)));
            return entries;
        }
        if (value instanceof Collection<?> items) {
            return items.stream().map(Reader::plain).toList();
        }
        if (value instanceof ByteBuffer buffer) {
            var bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return bytes;
        }
        if (value instanceof GenericFixed fixed) {
            return fixed.bytes();
        }
        return value instanceof Instant time ? MICROS.format(time) : value.toString();
    }

    @Override
    public void close() {
        avro.close();
        consumer.close();
    }
}
