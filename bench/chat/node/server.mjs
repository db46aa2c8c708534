// A peer of the chat: `node server.mjs socketio PORT REDIS_URL` or `node server.mjs ws PORT`.
// socket.io with the adapter for Redis streams hands what one client sends to all clients of all servers; the
// plain WebSocket server only accepts, to compare the memory of a socket.
import { createServer } from "node:http";

const [kind, port, url] = process.argv.slice(2);
const http = createServer();
if (kind === "socketio") {
  const { Server } = await import("socket.io");
  const { createAdapter } = await import("@socket.io/redis-streams-adapter");
  const { createClient } = await import("redis");
  const redis = createClient({ url });
  await redis.connect();
  const io = new Server(http, { adapter: createAdapter(redis), transports: ["websocket"], serveClient: false });
  io.on("connection", (socket) => socket.on("send", (data) => io.emit("message", data)));
} else {
  const { WebSocketServer } = await import("ws");
  new WebSocketServer({ server: http, perMessageDeflate: false }).on("connection", (socket) => socket.on("message", () => {}));
}
http.listen(Number(port), "127.0.0.1", () => console.log("ready"));
