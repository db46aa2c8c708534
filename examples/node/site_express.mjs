// A site in Express that looks after itself: it verifies the passes of visitors with Tidegate's public keys and sends
// whoever has none to the waiting page. No proxy in between.
//
//     tidegate room create shop --rate 60/m --max-active 10
//     node site_express.mjs
//
// Prefer `tidegate room guard` where you can (see site_flask.py): it also renews sessions with activity and ends
// downloads with their session.
import { createPublicKey, verify } from "node:crypto";
import http from "node:http";
import express from "express";

const tidegate = new URL(process.env.TIDEGATE_URL ?? "http://127.0.0.1:7070");
const queue = process.env.QUEUE ?? "shop";
const cookieName = `wr_${queue.replaceAll("-", "_")}`;
const app = express();
app.disable("x-powered-by");

// 1. The waiting page, and all it needs, is under /_wr/ on the site's own address: the cookie it sets, first the
//    position's token, then the pass, is the site's. Start Tidegate with --set http.trusted_proxies=127.0.0.1, so that
//    it believes the address of the visitor that is sent along.
app.use("/_wr", (request, reply) => {
  const forwarded = http.request(
    new URL(request.originalUrl, tidegate),
    { method: request.method, headers: { ...request.headers, "x-forwarded-for": request.socket.remoteAddress } },
    (answer) => {
      reply.writeHead(answer.statusCode, answer.rawHeaders);
      answer.pipe(reply);
    },
  );
  forwarded.on("error", () => reply.headersSent || reply.status(502).send("the waiting room does not answer"));
  reply.on("close", () => forwarded.destroy());
  request.pipe(forwarded);
});

// 2. The public keys. A pass names its key in `kid`; an unknown one is a reason to look again, but not more often
//    than every ten seconds, or anybody could make us ask all day.
let keys = new Map();
let readAt = 0;
async function publicKey(kid) {
  if (!keys.has(kid) && Date.now() - readAt > 10_000) {
    readAt = Date.now();
    const set = await (await fetch(new URL("/.well-known/jwks.json", tidegate))).json();
    keys = new Map(set.keys.map((jwk) => [jwk.kid, createPublicKey({ key: jwk, format: "jwk" })]));
  }
  return keys.get(kid);
}

// 3. A pass is a JWT for this queue, signed by one of those keys, which has not expired. The token of a position,
//    which is in the same cookie before, is not: it has no such signature.
async function claims(pass) {
  try {
    const [head, body, signature] = pass.split(".");
    const { alg, kid } = JSON.parse(Buffer.from(head, "base64url"));
    const key = ["EdDSA", "RS256"].includes(alg) && (await publicKey(kid));
    // The kind of key decides how to verify, not what the token says of itself.
    const algorithm = key?.asymmetricKeyType === "rsa" ? "sha256" : null;
    if (!key || !verify(algorithm, Buffer.from(`${head}.${body}`), key, Buffer.from(signature, "base64url"))) return null;
    const found = JSON.parse(Buffer.from(body, "base64url"));
    const audience = [found.aud].flat();
    return found.typ === "session" && audience.includes(queue) && found.exp * 1000 > Date.now() ? found : null;
  } catch {
    return null;
  }
}

// 4. Everything below needs a pass: in the cookie, or as a bearer token from programs.
app.use(async (request, reply, next) => {
  const cookies = (request.headers.cookie ?? "").split("; ").map((pair) => pair.split("="));
  const bearer = request.headers.authorization?.match(/^Bearer (.+)$/)?.[1];
  const pass = bearer ?? cookies.find(([name]) => name === cookieName)?.[1];
  request.visitor = pass && (await claims(pass));
  if (request.visitor) return next();
  const page = `/_wr/${queue}?return_to=${encodeURIComponent(request.originalUrl)}`;
  if (request.accepts(["json", "html"]) === "html") return reply.redirect(page);
  reply.status(429).set("Retry-After", "10").json({ error: { code: "QUEUED", message: `wait at ${page}` } });
});

app.get("/", (request, reply) => {
  reply.type("html").send(`<h1>Welcome</h1><p>Session ${request.visitor.jti}</p>`);
});

const port = Number(process.env.PORT ?? 3000);
const server = app.listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
