// A site in Express, as people write them: pages with validators, cookies, redirects, uploads, ranges,
// events, WebSockets. Prints its port. `replies.mjs` compares what it says with what arrives through
// the guard.
import crypto from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import zlib from "node:zlib";
import express from "express";
import { WebSocketServer } from "ws";

const app = express();
app.set("env", "test");
const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "site-")), "film.bin");
const bytes = crypto.createHash("shake256", { outputLength: 3_000_000 }).update("film").digest();
fs.writeFileSync(file, bytes);
fs.utimesSync(file, 1_700_000_000, 1_700_000_000);
process.on("exit", () => fs.rmSync(path.dirname(file), { recursive: true }));

app.get("/page", (request, reply) => reply.type("html").send(`<h1>${request.query.n ?? "page"}</h1>`));
app.get("/film", (request, reply) => reply.sendFile(file));
app.get("/packed", (request, reply) => {
  reply.set("content-encoding", "gzip").type("text").send(zlib.gzipSync("packed ".repeat(1000)));
});
app.get("/cookies", (request, reply) => {
  reply.cookie("cart", "two items", { path: "/", httpOnly: true, sameSite: "lax" });
  reply.cookie("lang", "de", { expires: new Date(2e12), path: "/shop" });
  reply.clearCookie("old");
  // The pass is the visitor's, and sent to the site with the rest.
  const own = (request.headers.cookie ?? "").split("; ").filter((pair) => !pair.startsWith("wr_site="));
  reply.json({ cookie: own.join("; ") });
});
app.get("/redirect", (request, reply) => reply.redirect("/page?n=a%20b#part"));
app.get("/moved", (request, reply) => reply.redirect(308, "https://other.example/x?y=%2F"));
app.get("/headers", (request, reply) => {
  reply.append("Link", "</a.css>; rel=preload").append("Link", "</b.js>; rel=preload");
  reply.set({ "X-Odd": "caf\u00e9", "X-Empty": "", "Vary": "Accept, Origin", "Server": "shop/1.0" });
  reply.set({ "Cache-Control": "public, max-age=60", "Content-Security-Policy": "default-src 'self'" });
  reply.send("ok");
});
app.get("/status/:code", (request, reply) => reply.status(Number(request.params.code)).send("told"));
app.get("/broken", (request, reply) => {
  reply.set("content-length", "1000");
  reply.write("only the beginning");
  reply.socket.destroySoon();
});
app.get("/big", (request, reply) => {
  let left = 200;
  const more = () => {
    while (left-- > 0) {
      if (!reply.write(bytes.subarray(0, 100_000))) return reply.once("drain", more);
    }
    reply.end();
  };
  more();
});
// The next event is sent when somebody asks for it: what is held back on the way never arrives.
let next = () => {};
app.get("/events", (request, reply) => {
  reply.set({ "content-type": "text/event-stream", "cache-control": "no-cache" });
  reply.write("id: 1\ndata: first\n\n");
  next = () => reply.end("id: 2\ndata: second\n\n");
});
app.post("/next", (request, reply) => { next(); reply.sendStatus(204); });
app.all("/upload", (request, reply) => {
  const hash = crypto.createHash("sha256");
  let length = 0;
  request.on("data", (piece) => { length += piece.length; hash.update(piece); });
  request.on("end", () => {
    const { "content-type": type = "", "content-encoding": coding = "" } = request.headers;
    reply.json({ method: request.method, length, hash: hash.digest("hex"), type, coding });
  });
});

const server = app.listen(0, "127.0.0.1", () => console.log(server.address().port));
const sockets = new WebSocketServer({ server, path: "/socket", handleProtocols: () => "chat" });
sockets.on("connection", (socket) => {
  socket.on("message", (data, binary) => socket.send(data, { binary }));
  socket.on("message", (data) => { if (`${data}` === "bye") socket.close(4001, "as you wish"); });
});
