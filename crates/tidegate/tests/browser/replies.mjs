// The reply through the guard is what the site said: each request is made to the site itself and to the
// guard in front of it, and the two replies are compared, byte for byte.
//
//     node replies.mjs express|files SITE GUARD
import assert from "node:assert/strict";
import crypto from "node:crypto";
import http from "node:http";

const [kind, site, guard] = process.argv.slice(2);

// Said by each connection anew, or by the guard itself on purpose.
const OF_THE_CONNECTION = ["connection", "date", "keep-alive", "transfer-encoding"];
const keptOpen = new http.Agent({ keepAlive: true, maxSockets: 1 });
let pass = "";

function send(base, line, { headers = {}, body, agent = keptOpen, chunked = false } = {}) {
  const [method, target] = line.split(" ");
  const url = new URL(base);
  return new Promise((resolve, reject) => {
    const cookie = [headers.cookie, base === guard ? pass : ""].filter(Boolean).join("; ");
    const request = http.request({
      host: url.hostname, port: url.port, method, path: target, agent,
      headers: { ...headers, ...(cookie && { cookie }) },
    });
    request.on("error", reject);
    request.on("response", (reply) => {
      const pieces = [];
      reply.on("data", (piece) => pieces.push(piece));
      reply.on("error", reject);
      reply.on("aborted", () => reject(new Error("cut off")));
      reply.on("end", () => {
        const told = [];
        for (let i = 0; i < reply.rawHeaders.length; i += 2) {
          told.push([reply.rawHeaders[i].toLowerCase(), reply.rawHeaders[i + 1]]);
        }
        const data = Buffer.concat(pieces);
        resolve({
          status: reply.statusCode,
          headers: told.filter(([name]) => !OF_THE_CONNECTION.includes(name)),
          body: data.toString("latin1"), socket: request.socket, reused: request.reusedSocket,
        });
      });
    });
    if (body !== undefined && !chunked) request.setHeader("content-length", Buffer.byteLength(body));
    if (body !== undefined) request.write(body);
    request.end();
  });
}

const isOurs = ([name, value]) => name === "set-cookie" && value.startsWith("wr_");
const sorted = (headers) => headers.map(([name, value]) => `${name}: ${value}`).sort();

async function same(line, options) {
  const [said, arrived] = [await send(site, line, options), await send(guard, line, options)];
  assert.equal(arrived.status, said.status, line);
  const headers = arrived.headers.filter((header) => !isOurs(header));
  assert.deepEqual(sorted(headers), sorted(said.headers), line);
  assert.equal(arrived.body.length, said.body.length, line);
  assert.ok(arrived.body === said.body, `${line}: another body`);
  return said;
}

async function enter(path) {
  const arrived = await send(guard, `GET ${path}`, { headers: { accept: "text/html" } });
  pass = arrived.headers.filter(isOurs).map(([, value]) => value.split(";")[0])[0];
  assert.match(pass ?? "", /^wr_site=eyJ/, `${arrived.status} ${arrived.body}`);
  // It came back: it is set once more, for the whole session.
  const again = await send(guard, `GET ${path}`);
  pass = again.headers.filter(isOurs).map(([, value]) => value.split(";")[0])[0] ?? pass;
}

const header = (reply, name) => reply.headers.find(([known]) => known === name)?.[1];

async function express() {
  await enter("/page");
  const page = await same("GET /page?n=%C3%A9%20%26");
  await same("HEAD /page");
  const etag = header(await same("GET /page"), "etag");
  assert.equal((await same("GET /page", { headers: { "if-none-match": etag } })).status, 304);
  assert.equal((await same("HEAD /page", { headers: { "if-none-match": etag } })).status, 304);
  const film = await same("GET /film");
  const modified = header(film, "last-modified");
  assert.equal((await same("GET /film", { headers: { "if-modified-since": modified } })).status, 304);
  assert.equal((await same("GET /film", { headers: { range: "bytes=1000-1999" } })).status, 206);
  assert.equal((await same("GET /film", { headers: { range: "bytes=9000000-" } })).status, 416);
  assert.equal((await same("HEAD /film")).body, "");
  await same("GET /packed", { headers: { "accept-encoding": "gzip" } });
  for (const cookie of ["", "a=1", "a=1; cart=two%20items; b=\"x\""]) {
    const said = await same("GET /cookies", { headers: cookie ? { cookie } : {} });
    assert.equal(said.headers.filter(([name]) => name === "set-cookie").length, 3);
  }
  assert.equal((await same("GET /redirect")).status, 302);
  assert.equal(header(await same("GET /moved"), "location"), "https://other.example/x?y=%2F");
  await same("GET /headers");
  for (const code of [201, 202, 204, 205, 400, 401, 404, 409, 410, 418, 429, 451, 500, 502, 503]) {
    assert.equal((await same(`GET /status/${code}`)).status, code);
  }
  await same("GET /nowhere");

  const body = crypto.createHash("shake256", { outputLength: 8_000_000 }).update("photo").digest();
  const type = { "content-type": "multipart/form-data; boundary=x" };
  for (const method of ["POST", "PUT", "PATCH", "DELETE"]) {
    await same(`${method} /upload`, { body, headers: type });
  }
  const said = await same("POST /upload", { body, headers: type, chunked: true });
  assert.equal(JSON.parse(said.body).length, body.length);
  await same("POST /upload", { body: "", headers: type });
  await same("POST /upload", { body, headers: { ...type, "content-encoding": "gzip" } });
  assert.equal((await same("GET /big")).body.length, 20_000_000);
  await keeps_a_connection("GET /page");

  // A reply that breaks off is never taken for a whole one.
  for (const base of [site, guard]) {
    await assert.rejects(send(base, "GET /broken", { agent: false }), /cut off|hang up|ECONNRESET/);
  }
  await events();
  await socket();
}

// Many requests, one connection, also after errors, redirects and replies without a body.
async function keeps_a_connection(line) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const first = await send(guard, line, { agent });
  for (const next of [line, "GET /status/500", "GET /redirect", "GET /status/204", "HEAD /page", line]) {
    const reply = await send(guard, next, { agent });
    assert.ok(reply.reused && reply.socket === first.socket, `${next}: another connection`);
  }
  agent.destroy();
}

// The second event leaves the site only after the first one arrived here.
async function events() {
  const url = new URL("/events", guard);
  const got = await new Promise((resolve, reject) => {
    let text = "", asked = false;
    const headers = { accept: "text/event-stream", cookie: pass };
    http.get(url, { headers, agent: false }, (reply) => {
      assert.match(reply.headers["content-type"], /^text\/event-stream/);
      reply.on("data", (piece) => {
        text += piece;
        if (!asked && text.includes("first\n\n")) {
          asked = true;
          send(site, "POST /next", { agent: false }).catch(reject);
        }
      });
      reply.on("end", () => resolve(text));
      reply.on("error", reject);
    }).on("error", reject);
  });
  assert.equal(got, "id: 1\ndata: first\n\nid: 2\ndata: second\n\n");
}

async function socket() {
  const { WebSocket } = await import("ws");
  const url = guard.replace("http:", "ws:") + "/socket";
  const opened = new WebSocket(url, ["chat"], { headers: { cookie: pass } });
  const got = [];
  const large = crypto.createHash("shake256", { outputLength: 2_000_000 }).update("frame").digest();
  const closed = await new Promise((resolve, reject) => {
    opened.on("error", reject);
    opened.on("open", () => { for (const said of ["hello", large, "bye"]) opened.send(said); });
    opened.on("message", (data, binary) => got.push([binary, data]));
    opened.on("close", (code, reason) => resolve([code, `${reason}`]));
  });
  assert.equal(opened.protocol, "chat");
  assert.deepEqual(closed, [4001, "as you wish"]);
  assert.deepEqual(got.map(([binary]) => binary), [false, true, false]);
  assert.ok(Buffer.compare(got[1][1], large) === 0);
  // Without a pass there is none.
  const refused = new WebSocket(url);
  const status = await new Promise((resolve, reject) => {
    refused.on("unexpected-response", (request, reply) => {
      resolve(reply.statusCode);
      request.destroy();
    });
    refused.on("open", () => reject(new Error("opened without a pass")));
    refused.on("error", reject);
  });
  assert.equal(status, 429);
}

// Python's http.server: HTTP/1.0, a connection for each reply, files and folders.
async function files() {
  await enter("/");
  const agent = false;
  const film = await same("GET /film.bin", { agent });
  assert.equal(film.body.length, 20_000_000);
  assert.equal((await same("HEAD /film.bin", { agent })).body, "");
  const since = { "if-modified-since": header(film, "last-modified") };
  assert.equal((await same("GET /film.bin", { agent, headers: since })).status, 304);
  assert.equal((await same("GET /film.bin", { agent, headers: { range: "bytes=0-9" } })).status, 200);
  assert.equal(header(await same("GET /folder", { agent }), "location"), "/folder/");
  await same("GET /folder/", { agent });
  await same("GET /folder/a%20b%C3%A9.txt?x=1", { agent });
  assert.equal((await same("GET /nowhere", { agent })).status, 404);
  assert.equal((await same("HEAD /nowhere", { agent })).status, 404);
  assert.equal((await same("POST /film.bin", { agent, body: "hello" })).status, 501);
  assert.equal((await same("DELETE /film.bin", { agent })).status, 501);
  await same("GET /empty.txt", { agent });
}

await { express, files }[kind]();
keptOpen.destroy();
console.log("the same");
