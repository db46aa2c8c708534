// The line to the server: calls with our error envelope, and the live connection `desk.v1`, which resumes where
// it was cut. Both clients, widget and console, use it.

export class CallError extends Error {
  constructor(status, code, message, retryAfter) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
  // Sent again later, it may succeed.
  get isPassing() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

export async function call(method, path, body, { token, raw, keepalive, headers = {}, signal } = {}) {
  const init = { method, headers: { ...headers }, keepalive, signal, credentials: token === undefined ? "same-origin" : "omit" };
  if (token) init.headers.authorization = `Bearer ${token}`;
  if (raw) init.body = body;
  else if (body !== undefined) {
    init.headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(`/api/v1${path}`, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError(0, "OFFLINE", "no connection");
  }
  const text = await answer.text();
  let data = null;
  try { data = text ? JSON.parse(text) : null; } catch { /* an error page of a proxy */ }
  if (!answer.ok) {
    const error = data?.error ?? {};
    throw new CallError(answer.status, error.code ?? "HTTP", error.message ?? `HTTP ${answer.status}`, Number(answer.headers.get("retry-after")) || 0);
  }
  return data;
}

const SLOWEST_MS = 30_000;

// One connection that stays: it asks for a ticket, says hello, resumes, and comes back with backoff.
// `hooks`: ticket() -> string, event(type, data), sync(), state("on" | "off"), ended(code).
export class Link {
  #socket = null;
  #resume = null;
  #tries = 0;
  #timer = 0;
  #wanted = false;
  #isReady = false;

  constructor(path, client, hooks) {
    Object.assign(this, { path, client, hooks });
    addEventListener("online", () => this.#soon(0));
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.#soon(0); });
  }

  get isReady() {
    return this.#isReady;
  }

  start() {
    if (this.#wanted) return;
    this.#wanted = true;
    this.#open();
  }

  stop() {
    this.#wanted = false;
    this.#resume = null;
    clearTimeout(this.#timer);
    this.#socket?.close(1000);
    this.#socket = null;
    this.#isReady = false;
  }

  send(frame) {
    if (!this.#isReady) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  #soon(delay) {
    if (!this.#wanted || this.#socket) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), delay);
  }

  #retry(least = 0) {
    this.#tries += 1;
    const most = Math.min(SLOWEST_MS, 500 * 2 ** Math.min(this.#tries, 8));
    this.#soon(Math.max(least, most / 2 + (Math.random() * most) / 2));
  }

  async #open() {
    clearTimeout(this.#timer);
    if (!this.#wanted || this.#socket) return;
    // Held from here on, so that two reasons to connect make one connection.
    const placeholder = { close() {} };
    this.#socket = placeholder;
    let ticket;
    try {
      ticket = await this.hooks.ticket();
    } catch (error) {
      if (this.#socket === placeholder) this.#socket = null;
      if (!this.#wanted) return;
      if (error.status === 401 || error.status === 403) {
        this.#wanted = false;
        return this.hooks.ended(error.status === 401 ? 4401 : 4403);
      }
      this.hooks.state("off");
      return this.#retry((error.retryAfter ?? 0) * 1000);
    }
    if (!this.#wanted || this.#socket !== placeholder) return;
    const url = new URL(this.path, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    url.searchParams.set("ticket", ticket);
    const socket = new WebSocket(url, "desk.v1");
    this.#socket = socket;
    socket.addEventListener("open", () => socket.send(JSON.stringify({ t: "hello", resume: this.#resume, client: this.client })));
    socket.addEventListener("message", (message) => this.#take(socket, message.data));
    socket.addEventListener("close", (event) => {
      if (this.#socket !== socket) return;
      this.#socket = null;
      this.#isReady = false;
      if (!this.#wanted) return;
      if (event.code === 4401 || event.code === 4403) {
        this.#wanted = false;
        return this.hooks.ended(event.code);
      }
      this.hooks.state("off");
      // A server that drains has another one beside it: no wait.
      if (event.code === 1001 || event.code === 4408) this.#soon(Math.random() * 300);
      else this.#retry(event.code === 4429 ? 5000 : 0);
    });
  }

  #take(socket, text) {
    if (this.#socket !== socket) return;
    const frame = JSON.parse(text);
    switch (frame.t) {
      case "ready":
        this.#isReady = true;
        this.#tries = 0;
        this.#resume = frame.resume ?? this.#resume;
        this.hooks.state("on", frame);
        if (!frame.resumed) this.hooks.sync();
        return;
      case "resync":
        return this.hooks.sync();
      case "event":
        if (frame.id) this.#resume = frame.id;
        if (frame.type === "server.draining") return socket.close(1000);
        return this.hooks.event(frame.type, frame.data ?? {});
    }
  }
}

// An id that no other message has.
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `c-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

// Messages in order, each once.
export function putMessage(list, message) {
  const at = list.findIndex((known) => known.seq >= message.seq);
  if (at < 0) list.push(message);
  else if (list[at].seq === message.seq) list[at] = message;
  else list.splice(at, 0, message);
}

let audio;
// A short soft tone. Browsers allow it after the person did something on the page.
export function chime() {
  try {
    audio ??= new AudioContext();
    const at = audio.currentTime, tone = audio.createOscillator(), gain = audio.createGain();
    tone.frequency.setValueAtTime(660, at);
    tone.frequency.setValueAtTime(880, at + 0.09);
    gain.gain.setValueAtTime(0.0001, at);
    gain.gain.exponentialRampToValueAtTime(0.12, at + 0.02);
    gain.gain.exponentialRampToValueAtTime(0.0001, at + 0.28);
    tone.connect(gain).connect(audio.destination);
    tone.start(at);
    tone.stop(at + 0.3);
  } catch { /* no sound on this device */ }
}
