import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;

/** Holds as many objects as it is told in a map, and gives them to any client that asks by HTTP. */
class Served {
    record Item(int id, String text, int[] list) {
        String json() {
            return String.format(
                "{\"id\":%d,\"text\":\"%s\",\"list\":[%d,%d]}", id, text, list[0], list[1]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        HashMap<String, Item> map = new HashMap<>();
        for (int id = 0; id < count; id++)
            map.put("key " + id, new Item(id, "object " + id * 7919L, new int[] {id, id + 1}));
        var address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[1]));
        var server = HttpServer.create(address, 0);
        server.createContext("/", exchange -> {
            String name = exchange.getRequestURI().getPath().substring(1);
            String answer = name.equals("size") ? "" + map.size() : map.get("key " + name).json();
            byte[] bytes = answer.getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, bytes.length);
            exchange.getResponseBody().write(bytes);
            exchange.close();
        });
        server.start();
    }
}
