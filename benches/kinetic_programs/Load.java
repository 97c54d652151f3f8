import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import kinetic.client.ClientConfiguration;
import kinetic.client.Entry;
import kinetic.client.EntryMetadata;
import kinetic.client.advanced.AdvancedKineticClient;
import kinetic.client.advanced.AdvancedKineticClientFactory;
import kinetic.client.advanced.PersistOption;

/** Load by the Java client: HOST PORT put|get SECONDS CONNECTIONS. Values of 1 KiB, write-back; prints calls per second. */
public class Load {
    static final int KEYS = 10000;

    static byte[] key(int client, long number) {
        return String.format("java/%04d/%08d", client, number % KEYS).getBytes();
    }

    static AdvancedKineticClient connect(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setHost(arguments[0]);
        configuration.setPort(Integer.parseInt(arguments[1]));
        return AdvancedKineticClientFactory.createAdvancedClientInstance(configuration);
    }

    public static void main(String[] arguments) throws Exception {
        boolean gets = arguments[2].equals("get");
        long time = (long) (Double.parseDouble(arguments[3]) * 1e9);
        byte[] value = new byte[1024];
        new java.util.Random(1).nextBytes(value);
        AtomicLong calls = new AtomicLong();
        List<AdvancedKineticClient> clients = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(arguments[4]); number++) {
            clients.add(connect(arguments));
        }
        if (gets) {
            for (int number = 0; number < KEYS; number++) {
                clients.get(0).putForced(new Entry(key(0, number), value, new EntryMetadata()), PersistOption.ASYNC);
            }
        }
        // The first second warms up the Java machine.
        long begun = System.nanoTime() + 1000000000L, end = begun + time;
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < clients.size(); number++) {
            AdvancedKineticClient client = clients.get(number);
            int mine = number;
            Thread thread = new Thread(() -> {
                long done = 0, counted = 0;
                try {
                    for (long now = System.nanoTime(); now < end; now = System.nanoTime()) {
                        if (!gets) {
                            client.putForced(new Entry(key(mine, done), value, new EntryMetadata()), PersistOption.ASYNC);
                        } else if (!Arrays.equals(client.get(key(0, done * 7919)).getValue(), value)) {
                            throw new IllegalStateException("another value");
                        }
                        done++;
                        counted += now >= begun ? 1 : 0;
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
                calls.addAndGet(counted);
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("{\"ops_per_s\": " + calls.get() / (time / 1e9) + "}");
        System.exit(0);
    }
}
