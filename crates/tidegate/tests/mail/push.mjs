// A push service and a browser in one: takes notifications, checks who signed them, and decrypts them with
// http_ece. Prints a line of JSON with its port and keys, then one per notification. Ends with its standard input.
// The path decides: /gone answers 410, /busy/… 503 the first time, everything else 201.
import { createECDH, createPublicKey, randomBytes, verify } from "node:crypto";
import { createServer } from "node:http";
import ece from "http_ece";

const browser = createECDH("prime256v1");
browser.generateKeys();
const auth = randomBytes(16);
const seen = new Set();
const tell = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

// Who signed, and for whom; null if the signature is not that of the key.
function signer(header, origin) {
  const found = /^vapid t=([\w-]+)\.([\w-]+)\.([\w-]+), ?k=([\w-]+)$/.exec(header ?? "");
  if (!found) return null;
  const [, head, claims, signature, k] = found;
  const raw = Buffer.from(k, "base64url");
  const key = createPublicKey({ format: "jwk", key: { kty: "EC", crv: "P-256", x: raw.subarray(1, 33).toString("base64url"), y: raw.subarray(33).toString("base64url") } });
  const isRight = verify("sha256", Buffer.from(`${head}.${claims}`), { key, dsaEncoding: "ieee-p1363" }, Buffer.from(signature, "base64url"));
  const told = JSON.parse(Buffer.from(claims, "base64url"));
  return isRight ? { ...told, k, isForUs: told.aud === origin, alg: JSON.parse(Buffer.from(head, "base64url")).alg } : null;
}

const server = createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = Buffer.concat(parts), origin = `http://127.0.0.1:${server.address().port}`;
    let status = 201, payload = null, error = null;
    try {
      payload = JSON.parse(ece.decrypt(body, { version: "aes128gcm", privateKey: browser, authSecret: auth.toString("base64url") }));
    } catch (cause) {
      error = String(cause);
    }
    if (request.url.startsWith("/gone")) status = 410;
    if (request.url.startsWith("/busy") && !seen.has(request.url)) status = 503;
    seen.add(request.url);
    tell({ path: request.url, status, payload, error, bytes: body.length, headers: request.headers, signer: signer(request.headers.authorization, origin), isPlain: body.includes("parcel") });
    response.writeHead(status).end();
  });
});
server.listen(0, "127.0.0.1", () => tell({ port: server.address().port, p256dh: browser.getPublicKey("base64url"), auth: auth.toString("base64url") }));
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
