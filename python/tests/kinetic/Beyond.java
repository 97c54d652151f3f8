import com.google.protobuf.ByteString;
import com.google.protobuf.UnknownFieldSet;
import com.seagate.kinetic.client.internal.MessageFactory;
import com.seagate.kinetic.common.lib.KineticMessage;
import com.seagate.kinetic.proto.Kinetic.Command;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import kinetic.admin.AdminClientConfiguration;
import kinetic.admin.KineticAdminClient;
import kinetic.admin.KineticAdminClientFactory;
import kinetic.admin.KineticLog;
import kinetic.admin.KineticLogType;
import kinetic.admin.Limits;
import kinetic.admin.MessageType;
import kinetic.admin.Statistics;
import kinetic.admin.Utilization;
import kinetic.client.AsyncKineticException;
import kinetic.client.BatchOperation;
import kinetic.client.CallbackHandler;
import kinetic.client.CallbackResult;
import kinetic.client.ClientConfiguration;
import kinetic.client.Entry;
import kinetic.client.EntryMetadata;
import kinetic.client.KineticClient;
import kinetic.client.KineticException;
import kinetic.client.VersionMismatchException;
import kinetic.client.advanced.AdvancedKineticClient;
import kinetic.client.advanced.AdvancedKineticClientFactory;
import kinetic.client.advanced.PersistOption;
import kinetic.client.p2p.KineticP2PClientFactory;
import kinetic.client.p2p.KineticP2pClient;
import kinetic.client.p2p.Operation;
import kinetic.client.p2p.Peer;
import kinetic.client.p2p.PeerToPeerOperation;

/**
 * What the Java client can do and its conformance suite leaves out: {@code DRIVE OTHER OBJECTS CHECK...}, where the
 * drives are {@code HOST:PORT:TLSPORT}, and OBJECTS is the directory of the programs. Each check begins with an empty
 * drive and prints {@code ok NAME}, or why it failed. The other drive has the limits of a real drive.
 *
 * <p>The client knows protocol 3.0.6. Programs and power levels came later: they travel as unknown fields, and the
 * client hands over the answer with the complaint that it does not know its type.
 */
public class Beyond {
    /** Seconds that a client waits for an answer. */
    static final int PATIENCE = 60;

    /** Message types and fields that protocol 3.0.6 does not have. */
    static final int POWER = 48, APPLET = 50, MESSAGE_TYPE = 7, BODY_POWER = 10, BODY_APPLET = 11;

    /** Of a program: types of requests, and languages. */
    static final int EXECUTE = 1, ABORT = 3, PROCESS_STATUS = 4, EBPF = 4;

    /** One check. */
    interface Check {
        void run() throws Exception;
    }

    /** Where a drive listens. */
    static final class Address {
        final String host;
        final int port, tlsPort;

        Address(String text) {
            String[] parts = text.split(":");
            host = parts[0];
            port = Integer.parseInt(parts[1]);
            tlsPort = Integer.parseInt(parts[2]);
        }

        ClientConfiguration configured(ClientConfiguration configuration, boolean tls) {
            configuration.setHost(host);
            configuration.setPort(tls ? tlsPort : port);
            configuration.setUseSsl(tls);
            configuration.setRequestTimeoutMillis(PATIENCE * 1000L);
            return configuration;
        }

        AdvancedKineticClient client() throws KineticException {
            return AdvancedKineticClientFactory.createAdvancedClientInstance(configured(new ClientConfiguration(), false));
        }

        KineticAdminClient admin() throws KineticException {
            return KineticAdminClientFactory.createInstance((AdminClientConfiguration) configured(new AdminClientConfiguration(), true));
        }
    }

    /** Collects what asynchronous requests gave. */
    static final class Answers<T> implements CallbackHandler<T> {
        final Map<String, T> results = new ConcurrentHashMap<>();
        final List<Exception> failures = Collections.synchronizedList(new ArrayList<>());
        final CountDownLatch left;

        Answers(int expected) {
            left = new CountDownLatch(expected);
        }

        @Override
        public void onSuccess(CallbackResult<T> result) {
            if (results.put(text(result.getRequestKey()) + "/" + left.getCount(), result.getResult()) != null) {
                failures.add(new IllegalStateException("one request was answered twice"));
            }
            left.countDown();
        }

        @Override
        public void onError(AsyncKineticException error) {
            failures.add(error);
            left.countDown();
        }

        void await(int expected) throws InterruptedException {
            must(left.await(PATIENCE, TimeUnit.SECONDS), left.getCount() + " requests were not answered");
            must(failures.isEmpty(), "requests failed: " + failures);
            equal(results.size(), expected);
        }
    }

    /** It may listen elsewhere after a restart. */
    Address drive;
    final Address other;
    final Path objects;

    Beyond(Address drive, Address other, Path objects) {
        this.drive = drive;
        this.other = other;
        this.objects = objects;
    }

    // Requests of the plain client.

    void noopIsAnswered() throws Exception {
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            long took = client.it.noop();
            must(took >= 0 && took < PATIENCE * 1000L, "a noop of " + took + " ms");
        }
    }

    void versionIsReadAlone() throws Exception {
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            fails(KineticException.class, () -> client.it.getVersion(bytes("k")));
            client.it.putForced(entry("k", "value", "version 1"));
            equal(text(client.it.getVersion(bytes("k"))), "version 1");
        }
    }

    void forceGoesOverVersionsInEachMode() throws Exception {
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            for (PersistOption mode : PersistOption.values()) {
                String key = "k" + mode;
                // The metadata's version is that which is stored; the new one is an argument of its own.
                client.it.put(entry(key, "1", ""), bytes("v1"), mode);
                fails(VersionMismatchException.class, () -> client.it.put(entry(key, "2", "v0"), bytes("v2"), mode));
                fails(VersionMismatchException.class, () -> client.it.delete(entry(key, "1", "v0"), mode));
                equal(text(client.it.get(bytes(key)).getValue()), "1");
                client.it.putForced(entry(key, "3", "v3"), mode);
                equal(text(client.it.get(bytes(key)).getEntryMetadata().getVersion()), "v3");
                must(client.it.deleteForced(bytes(key), mode), "a key that is there");
                must(client.it.deleteForced(bytes(key), mode), "deleting by force succeeds without a key");
                equal(client.it.get(bytes(key)), null);
            }
        }
    }

    void countingByVersionsLosesNoCount() throws Exception {
        try (Closing<AdvancedKineticClient> first = new Closing<>(drive.client())) {
            first.it.putForced(entry("counter", "0", "0"));
            AtomicReference<Exception> failure = new AtomicReference<>();
            List<Thread> threads = new ArrayList<>();
            for (int number = 0; number < 4; number++) {
                Thread thread = new Thread(() -> {
                    try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
                        for (int added = 0; added < 25;) {
                            String found = text(client.it.get(bytes("counter")).getEntryMetadata().getVersion());
                            String next = Integer.toString(Integer.parseInt(found) + 1);
                            try {
                                client.it.put(entry("counter", next, found), bytes(next), PersistOption.ASYNC);
                                added++;
                            } catch (VersionMismatchException another) {
                                // Another client was first.
                            }
                        }
                    } catch (Exception error) {
                        failure.set(error);
                    }
                });
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) {
                thread.join();
            }
            equal(failure.get(), null);
            equal(text(first.it.get(bytes("counter")).getValue()), "100");
        }
    }

    // More requests under way than a drive announces to take.

    ClientConfiguration deep(Address address) {
        ClientConfiguration configuration = address.configured(new ClientConfiguration(), false);
        configuration.setAsyncQueueSize(500);
        return configuration;
    }

    void requestsBeyondTheAnnouncedDepthAreAnswered() throws Exception {
        int many = 400;
        try (Closing<AdvancedKineticClient> client = new Closing<>(AdvancedKineticClientFactory.createAdvancedClientInstance(deep(other)))) {
            Answers<Entry> written = new Answers<>(many), read = new Answers<>(many);
            for (int number = 0; number < many; number++) {
                client.it.putForcedAsync(entry("k" + number, "value " + number, "1"), PersistOption.ASYNC, written);
            }
            for (int number = 0; number < many; number++) {
                client.it.getAsync(bytes("k" + number), read);
            }
            written.await(many);
            read.await(many);
            for (Entry found : read.results.values()) {
                equal(text(found.getValue()), "value " + text(found.getKey()).substring(1));
            }
        }
    }

    void writesUnderWayTakeEffectInTheirOrder() throws Exception {
        int many = 300;
        try (Closing<AdvancedKineticClient> client = new Closing<>(AdvancedKineticClientFactory.createAdvancedClientInstance(deep(drive)))) {
            PersistOption[] modes = PersistOption.values();
            Answers<Entry> written = new Answers<>(many);
            for (int number = 0; number < many; number++) {
                client.it.putForcedAsync(entry("k", Integer.toString(number), "1"), number % 50 == 0 ? modes[number / 50 % 3] : PersistOption.ASYNC, written);
            }
            // A read waits for the writes before it.
            equal(text(client.it.get(bytes("k")).getValue()), Integer.toString(many - 1));
            written.await(many);
        }
    }

    void flushedWritesSurviveKill() throws Exception {
        int many = 50;
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            for (int number = 0; number < many; number++) {
                client.it.putForced(entry("k" + number, "value " + number, "1"), PersistOption.ASYNC);
            }
            client.it.flush();
        }
        // The test that started this program kills the drive now, starts it again, and sends its new address.
        System.out.println("kill");
        drive = new Address(new BufferedReader(new InputStreamReader(System.in)).readLine());
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            for (int number = 0; number < many; number++) {
                equal(text(client.it.get(bytes("k" + number)).getValue()), "value " + number);
            }
        }
    }

    // Batches.

    void batchOfThousandsIsOne() throws Exception {
        int many = 2000;
        try (Closing<AdvancedKineticClient> client = new Closing<>(other.client()); Closing<AdvancedKineticClient> reader = new Closing<>(other.client())) {
            BatchOperation batch = client.it.createBatchOperation();
            for (int number = 0; number < many; number++) {
                batch.putForced(entry(String.format("k%04d", number), "value " + number, "1"));
            }
            equal(count(reader.it), 0);
            batch.commit();
            equal(count(reader.it), many);
            equal(text(reader.it.get(bytes("k1234")).getValue()), "value 1234");
            BatchOperation aborted = client.it.createBatchOperation();
            BatchOperation removal = client.it.createBatchOperation();
            for (int number = 0; number < many; number++) {
                aborted.deleteForced(bytes(String.format("k%04d", number)));
                if (number % 2 == 0) {
                    removal.delete(entry(String.format("k%04d", number), "", "1"));
                }
            }
            aborted.abort();
            removal.commit();
            equal(count(reader.it), many / 2);
        }
    }

    void batchOfTooManyDeletesEndsItsConnection() throws Exception {
        CompletableFuture<String> said = new CompletableFuture<>();
        ClientConfiguration configuration = other.configured(new ClientConfiguration(), false);
        configuration.setConnectionListener(message -> {
            Command.Status status = (Command.Status) message.getCommand().getStatus();
            // The first one greets.
            if (status.getCode() != Command.Status.StatusCode.SUCCESS) {
                said.complete(status.getCode() + ": " + status.getStatusMessage());
            }
        });
        try (Closing<AdvancedKineticClient> client = new Closing<>(AdvancedKineticClientFactory.createAdvancedClientInstance(configuration))) {
            BatchOperation batch = client.it.createBatchOperation();
            for (int number = 0; number <= 24000; number++) {
                batch.deleteForced(bytes("k"));
            }
            equal(said.get(PATIENCE, TimeUnit.SECONDS), "INVALID_REQUEST: the batch has 24001 deletes, the limit is 24000");
        }
        try (Closing<AdvancedKineticClient> client = new Closing<>(other.client())) {
            client.it.noop();
        }
    }

    // Logs, limits.

    void limitsAreThoseOfARealDrive() throws Exception {
        try (Closing<KineticAdminClient> admin = new Closing<>(other.admin())) {
            Limits limits = admin.it.getLog(List.of(KineticLogType.LIMITS)).getLimits();
            equal(
                List.of(
                    limits.getMaxKeySize(), limits.getMaxValueSize(), limits.getMaxVersionSize(), limits.getMaxTagSize(), limits.getMaxConnections(),
                    limits.getMaxOutstandingReadRequests(), limits.getMaxOutstandingWriteRequests(), limits.getMaxMessageSize(),
                    limits.getMaxKeyRangeCount(), limits.getMaxIdentityCount()),
                List.of(1024, 1 << 20, 2048, 128, 100, 30, 20, 1 << 20, 800, 1000));
        }
        try (Closing<AdvancedKineticClient> client = new Closing<>(other.client())) {
            client.it.putForced(new Entry(new byte[1024], bytes("v"), metadata("1")));
            fails(KineticException.class, () -> client.it.putForced(new Entry(new byte[1025], bytes("v"), metadata("1"))));
            fails(KineticException.class, () -> client.it.getKeyRange(bytes("a"), true, bytes("z"), true, 801));
            equal(client.it.getKeyRange(bytes("a"), true, bytes("z"), true, 800).size(), 0);
            EntryMetadata tagged = new EntryMetadata(bytes("1"), new byte[129], "SHA1");
            fails(KineticException.class, () -> client.it.putForced(new Entry(bytes("k"), bytes("v"), tagged)));
        }
    }

    void connectionsBeyondTheAnnouncedAreTurnedAway() throws Exception {
        List<KineticClient> open = new ArrayList<>();
        try (Closing<KineticAdminClient> admin = new Closing<>(other.admin())) {
            // Those of earlier checks end at their own time.
            while (connections(admin.it) > 1) {}
            while (open.size() < 150) {
                // The first thing that the drive says, which the client itself takes for a greeting in any case.
                CompletableFuture<Command.Status.StatusCode> greeted = new CompletableFuture<>();
                ClientConfiguration configuration = other.configured(new ClientConfiguration(), false);
                configuration.setConnectionListener(message -> greeted.complete(message.getCommand().getStatus().getCode()));
                KineticClient client = AdvancedKineticClientFactory.createAdvancedClientInstance(configuration);
                open.add(client);
                if (greeted.get(PATIENCE, TimeUnit.SECONDS) != Command.Status.StatusCode.SUCCESS) {
                    equal(greeted.get(), Command.Status.StatusCode.SERVICE_BUSY);
                    break;
                }
                client.noop();
            }
            open.remove(open.size() - 1).close();
            equal(open.size() + 1, 100);
            open.get(0).putForced(entry("k", "v", "1"));
            // A place that is given back is taken again.
            open.remove(open.size() - 1).close();
            while (connections(admin.it) > 99) {}
            try (Closing<AdvancedKineticClient> again = new Closing<>(other.client())) {
                equal(text(again.it.get(bytes("k")).getValue()), "v");
            }
        } finally {
            for (KineticClient client : open) {
                client.close();
            }
        }
    }

    static int connections(KineticAdminClient admin) throws KineticException {
        String status = text(admin.getVendorSpecificDeviceLog(bytes("skytether/status")).getValue());
        Matcher found = Pattern.compile("\"connections\":(\\d+)").matcher(status);
        must(found.find(), status);
        return Integer.parseInt(found.group(1));
    }

    void everyLogIsTold() throws Exception {
        try (Closing<KineticAdminClient> admin = new Closing<>(drive.admin())) {
            List<KineticLogType> types = new ArrayList<>(Arrays.asList(KineticLogType.values()));
            types.remove(KineticLogType.DEVICE);
            KineticLog log = admin.it.getLog(types);
            equal(log.getContainedLogTypes().length, types.size());
            must(!log.getUtilization().isEmpty() && !log.getTemperature().isEmpty(), "utilizations and temperatures are there");
            for (Utilization one : log.getUtilization()) {
                must(!one.getName().isEmpty() && one.getUtility() >= 0 && one.getUtility() <= 1, one.getName() + " is used by " + one.getUtility());
            }
            float full = log.getCapacity().getPortionFull();
            must(log.getCapacity().getNominalCapacityInBytes() > 0 && full >= 0 && full <= 1, full + " of the capacity is full");
            equal(List.of(log.getConfiguration().getPort(), log.getConfiguration().getTlsPort()), List.of(drive.port, drive.tlsPort));
            must(log.getMessages().length > 0, "there are messages");
            equal(log.getLimits().getMaxValueSize(), 1 << 20);
            must(!log.getStatistics().isEmpty(), "there are statistics");
        }
    }

    void statisticsCountRequestsAndBytes() throws Exception {
        try (Closing<KineticAdminClient> admin = new Closing<>(drive.admin()); Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            Map<MessageType, long[]> before = statistics(admin.it);
            for (int number = 0; number < 7; number++) {
                client.it.putForced(new Entry(bytes("k" + number), new byte[100], metadata("1")));
            }
            for (int number = 0; number < 11; number++) {
                equal(client.it.get(bytes("k" + number % 7)).getValue().length, 100);
            }
            client.it.noop();
            Map<MessageType, long[]> after = statistics(admin.it);
            Map<MessageType, List<Long>> changed = new LinkedHashMap<>();
            for (MessageType type : List.of(MessageType.PUT, MessageType.GET, MessageType.NOOP, MessageType.DELETE)) {
                changed.put(type, List.of(after.get(type)[0] - before.get(type)[0], after.get(type)[1] - before.get(type)[1]));
            }
            Map<MessageType, List<Long>> expected = new LinkedHashMap<>();
            expected.put(MessageType.PUT, List.of(7L, 700L));
            expected.put(MessageType.GET, List.of(11L, 1100L));
            expected.put(MessageType.NOOP, List.of(1L, 0L));
            expected.put(MessageType.DELETE, List.of(0L, 0L));
            equal(changed, expected);
        }
    }

    static Map<MessageType, long[]> statistics(KineticAdminClient admin) throws KineticException {
        Map<MessageType, long[]> found = new LinkedHashMap<>();
        for (Statistics one : admin.getLog(List.of(KineticLogType.STATISTICS)).getStatistics()) {
            found.put(one.getMessageType(), new long[] {one.getCount(), one.getBytes()});
        }
        return found;
    }

    // Administration.

    void headersOfAScanAreUnderstood() throws Exception {
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            for (int number = 0; number < 20; number++) {
                client.it.putForced(entry("k" + number, "value", "1"));
            }
            for (Command.MessageType type : List.of(Command.MessageType.MEDIASCAN, Command.MessageType.MEDIAOPTIMIZE)) {
                for (Command.Priority priority : Command.Priority.values()) {
                    KineticMessage request = MessageFactory.createKineticMessageWithBuilder();
                    Command.Builder command = (Command.Builder) request.getCommand();
                    command.getHeaderBuilder().setMessageType(type).setPriority(priority).setTimeout(50_000).setEarlyExit(true).setTimeQuanta(1000);
                    Command.Range.Builder range = command.getBodyBuilder().getRangeBuilder();
                    range.setStartKey(ByteString.copyFromUtf8("k")).setEndKey(ByteString.copyFromUtf8("l")).setStartKeyInclusive(true).setEndKeyInclusive(true);
                    KineticMessage answer = client.it.request(request);
                    equal(answer.getCommand().getStatus().getCode(), Command.Status.StatusCode.SUCCESS);
                    // It came to its end, and so names no last key; and it found no damage.
                    equal(answer.getCommand().getBody().getRange().getKeysCount(), 0);
                    must(!answer.getCommand().getBody().getRange().hasEndKey(), "it came to its end");
                }
            }
        }
    }

    void pushGoesToAPeerOverTls() throws Exception {
        KineticP2pClient pusher = KineticP2PClientFactory.createP2pClient(drive.configured(new ClientConfiguration(), false));
        try (Closing<AdvancedKineticClient> receiver = new Closing<>(other.client())) {
            pusher.putForced(entry("a", "value of a", "7"));
            Peer peer = new Peer();
            peer.setHost(other.host);
            peer.setPort(other.tlsPort);
            peer.setUseTls(true);
            PeerToPeerOperation push = new PeerToPeerOperation();
            push.setPeer(peer);
            for (String key : List.of("a", "absent")) {
                Operation operation = new Operation();
                operation.setKey(bytes(key));
                operation.setNewKey(bytes("copy of " + key));
                operation.setForced(true);
                push.addOperation(operation);
            }
            PeerToPeerOperation done = pusher.PeerToPeerPush(push);
            must(!done.getStatus(), "one of them failed");
            equal(List.of(done.getOperationList().get(0).getStatus(), done.getOperationList().get(1).getStatus()), List.of(true, false));
            equal(done.getOperationList().get(1).getStatusCode(), Command.Status.StatusCode.NOT_FOUND);
            Entry copy = receiver.it.get(bytes("copy of a"));
            equal(List.of(text(copy.getValue()), text(copy.getEntryMetadata().getVersion())), List.of("value of a", "7"));
        } finally {
            pusher.close();
        }
    }

    void secureEraseLeavesNothing() throws Exception {
        try (Closing<KineticAdminClient> admin = new Closing<>(drive.admin())) {
            for (int number = 0; number < 30; number++) {
                admin.it.putForced(new Entry(bytes("k" + number), new byte[100_000], metadata("1")), PersistOption.ASYNC);
            }
            admin.it.setErasePin(new byte[0], bytes("pin"));
            fails(KineticException.class, () -> admin.it.secureErase(bytes("another")));
            equal(admin.it.get(bytes("k29")).getValue().length, 100_000);
            admin.it.secureErase(bytes("pin"));
        }
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            equal(count(client.it), 0);
            client.it.putForced(entry("k", "new", "1"));
            equal(text(client.it.get(bytes("k")).getValue()), "new");
        }
    }

    void sleepingDriveWakes() throws Exception {
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            client.it.putForced(entry("k", "v", "1"));
            equal(code(newer(client.it, POWER, BODY_POWER, number(1, 2))), 1L);
            // HIBERNATE (22) is a status that the client does not know.
            KineticException refused = fails(KineticException.class, () -> client.it.get(bytes("k")));
            equal(code(answer(refused)), 22L);
            equal(code(newer(client.it, POWER, BODY_POWER, number(1, 1))), 1L);
            equal(text(client.it.get(bytes("k")).getValue()), "v");
        }
    }

    // Programs, which are younger than the client.

    void programIsStoredRunAndItsOutputRead() throws Exception {
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client())) {
            byte[] words = Files.readAllBytes(objects.resolve("words.o"));
            client.it.putForced(new Entry(bytes("words.0000"), Arrays.copyOfRange(words, 0, 100), metadata("1")));
            client.it.putForced(new Entry(bytes("words.0001"), Arrays.copyOfRange(words, 100, words.length), metadata("1")));
            client.it.putForced(entry("text", "to be or not to be", "1"));
            KineticMessage answer = newer(client.it, APPLET, BODY_APPLET, applet(EXECUTE, List.of("words.0000", "words.0001"), "text"));
            equal(code(answer), 1L);
            // As `kctl exec` reads it: code, signal, message, and what the program printed.
            String[] parts = answer.getCommand().getStatus().getDetailedMessage().toStringUtf8().replace("\0", "").split(":", 4);
            equal(List.of(parts[0], parts[1], parts[3]), List.of("0", "0", "6\n"));
            KineticMessage refused = newer(client.it, APPLET, BODY_APPLET, applet(EXECUTE, List.of("absent")));
            equal(code(refused), 7L);
        }
    }

    void endlessProgramIsListedAndAborted() throws Exception {
        try (Closing<AdvancedKineticClient> client = new Closing<>(drive.client()); Closing<AdvancedKineticClient> watcher = new Closing<>(drive.client())) {
            client.it.putForced(new Entry(bytes("endless"), Files.readAllBytes(objects.resolve("endless.o")), metadata("1")));
            AtomicReference<Object> ended = new AtomicReference<>();
            Thread runner = new Thread(() -> {
                try {
                    ended.set(newer(client.it, APPLET, BODY_APPLET, applet(EXECUTE, List.of("endless"))));
                } catch (Exception error) {
                    ended.set(error);
                }
            });
            runner.start();
            while (programs(watcher.it).isEmpty()) {
                must(ended.get() == null, "it ended by itself: " + ended.get());
            }
            equal(programs(watcher.it), List.of("endless"));
            equal(code(newer(watcher.it, APPLET, BODY_APPLET, applet(ABORT, List.of("endless")))), 1L);
            runner.join();
            must(ended.get() instanceof KineticMessage, String.valueOf(ended.get()));
            String detail = ((KineticMessage) ended.get()).getCommand().getStatus().getDetailedMessage().toStringUtf8();
            equal(detail.split(":")[1], "9");
            equal(programs(watcher.it), List.of());
        }
    }

    /** The programs that run, by the first of their keys. */
    static List<String> programs(AdvancedKineticClient client) throws Exception {
        KineticMessage answer = newer(client, APPLET, BODY_APPLET, number(1, PROCESS_STATUS));
        UnknownFieldSet.Field applet = answer.getCommand().getBody().getUnknownFields().getField(BODY_APPLET);
        List<String> found = new ArrayList<>();
        for (ByteString one : UnknownFieldSet.parseFrom(applet.getLengthDelimitedList().get(0)).getField(5).getLengthDelimitedList()) {
            found.add(UnknownFieldSet.parseFrom(one).getField(1).getLengthDelimitedList().get(0).toStringUtf8());
        }
        return found;
    }

    static UnknownFieldSet.Builder number(int field, long value) {
        return UnknownFieldSet.newBuilder().addField(field, UnknownFieldSet.Field.newBuilder().addVarint(value).build());
    }

    static UnknownFieldSet.Builder applet(int type, List<String> keys, String... parameters) {
        UnknownFieldSet.Field.Builder programKeys = UnknownFieldSet.Field.newBuilder(), programParameters = UnknownFieldSet.Field.newBuilder();
        keys.forEach(key -> programKeys.addLengthDelimited(ByteString.copyFromUtf8(key)));
        Arrays.asList(parameters).forEach(parameter -> programParameters.addLengthDelimited(ByteString.copyFromUtf8(parameter)));
        UnknownFieldSet.Builder made = number(1, type).mergeFrom(number(2, EBPF).build()).addField(3, programKeys.build());
        return made.addField(7, programParameters.build()).mergeFrom(number(8, 2).build());
    }

    /** The answer to a request of a type that the client does not know, with a body in `field`. */
    static KineticMessage newer(AdvancedKineticClient client, int type, int field, UnknownFieldSet.Builder body) throws Exception {
        KineticMessage request = MessageFactory.createKineticMessageWithBuilder();
        Command.Builder command = (Command.Builder) request.getCommand();
        command.getHeaderBuilder().setUnknownFields(number(MESSAGE_TYPE, type).build());
        UnknownFieldSet.Field bytes = UnknownFieldSet.Field.newBuilder().addLengthDelimited(body.build().toByteString()).build();
        command.getBodyBuilder().setUnknownFields(UnknownFieldSet.newBuilder().addField(field, bytes).build());
        KineticException unknown = fails(KineticException.class, () -> client.request(request));
        KineticMessage answer = answer(unknown);
        equal(answer.getCommand().getHeader().getUnknownFields().getField(MESSAGE_TYPE).getVarintList(), List.of(type - 1L));
        return answer;
    }

    /** The answer that made the client fail. */
    static KineticMessage answer(KineticException failure) throws KineticException {
        for (Throwable cause = failure; cause instanceof KineticException; cause = cause.getCause()) {
            if (((KineticException) cause).getResponseMessage() != null) {
                return ((KineticException) cause).getResponseMessage();
            }
        }
        throw failure;
    }

    /** The status of an answer, also one that the client does not know. */
    static long code(KineticMessage answer) {
        Command.Status status = answer.getCommand().getStatus();
        return status.hasCode() ? status.getCode().getNumber() : status.getUnknownFields().getField(1).getVarintList().get(0);
    }

    // Help.

    /** A client that is closed with its block. */
    static final class Closing<T extends KineticClient> implements AutoCloseable {
        final T it;

        Closing(T it) {
            this.it = it;
        }

        @Override
        public void close() throws KineticException {
            it.close();
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    static EntryMetadata metadata(String version) {
        return new EntryMetadata(bytes(version), new byte[0], "SHA1");
    }

    static Entry entry(String key, String value, String version) {
        return new Entry(bytes(key), bytes(value), metadata(version));
    }

    /** How many keys there are, in steps of at most 200. */
    static int count(AdvancedKineticClient client) throws KineticException {
        int found = 0;
        byte[] after = new byte[0];
        while (true) {
            List<byte[]> some = client.getKeyRange(after, after.length == 0, new byte[] {-1}, true, 200);
            found += some.size();
            if (some.size() < 200) {
                return found;
            }
            after = some.get(199);
        }
    }

    static void must(boolean held, String why) {
        if (!held) {
            throw new AssertionError(why);
        }
    }

    static void equal(Object found, Object expected) {
        must(found == null ? expected == null : found.equals(expected), "found " + found + ", expected " + expected);
    }

    /** That `call` fails so, and how. */
    static <E extends Exception> E fails(Class<E> kind, Check call) throws Exception {
        try {
            call.run();
        } catch (Exception error) {
            if (kind.isInstance(error)) {
                return kind.cast(error);
            }
            throw error;
        }
        throw new AssertionError("it succeeded, and should have failed with " + kind.getSimpleName());
    }

    /** Erases a drive. */
    static void empty(Address address) throws KineticException {
        try (Closing<KineticAdminClient> admin = new Closing<>(address.admin())) {
            admin.it.instantErase(new byte[0]);
        }
    }

    Map<String, Check> checks() {
        Map<String, Check> all = new LinkedHashMap<>();
        all.put("noop is answered", this::noopIsAnswered);
        all.put("version is read alone", this::versionIsReadAlone);
        all.put("force goes over versions in each mode", this::forceGoesOverVersionsInEachMode);
        all.put("counting by versions loses no count", this::countingByVersionsLosesNoCount);
        all.put("requests beyond the announced depth are answered", this::requestsBeyondTheAnnouncedDepthAreAnswered);
        all.put("writes under way take effect in their order", this::writesUnderWayTakeEffectInTheirOrder);
        all.put("flushed writes survive kill", this::flushedWritesSurviveKill);
        all.put("every log is told", this::everyLogIsTold);
        all.put("headers of a scan are understood", this::headersOfAScanAreUnderstood);
        all.put("secure erase leaves nothing", this::secureEraseLeavesNothing);
        all.put("statistics count requests and bytes", this::statisticsCountRequestsAndBytes);
        all.put("limits are those of a real drive", this::limitsAreThoseOfARealDrive);
        all.put("batch of thousands is one", this::batchOfThousandsIsOne);
        all.put("batch of too many deletes ends its connection", this::batchOfTooManyDeletesEndsItsConnection);
        all.put("connections beyond the announced are turned away", this::connectionsBeyondTheAnnouncedAreTurnedAway);
        all.put("push goes to a peer over TLS", this::pushGoesToAPeerOverTls);
        all.put("sleeping drive wakes", this::sleepingDriveWakes);
        all.put("program is stored, run and its output read", this::programIsStoredRunAndItsOutputRead);
        all.put("endless program is listed and aborted", this::endlessProgramIsListedAndAborted);
        return all;
    }

    public static void main(String[] arguments) throws Exception {
        Beyond beyond = new Beyond(new Address(arguments[0]), new Address(arguments[1]), Path.of(arguments[2]));
        Map<String, Check> checks = beyond.checks();
        boolean failed = false;
        for (String name : Arrays.asList(arguments).subList(3, arguments.length)) {
            long begun = System.nanoTime();
            try {
                empty(beyond.drive);
                empty(beyond.other);
                checks.get(name).run();
                System.out.println("ok " + name);
                System.out.printf("   %.1f s%n", (System.nanoTime() - begun) / 1e9);
            } catch (Throwable error) {
                failed = true;
                System.out.println("FAILED " + name);
                error.printStackTrace(System.out);
            }
        }
        // The client leaves threads behind.
        System.exit(failed ? 1 : 0);
    }
}
