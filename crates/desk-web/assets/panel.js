// The chat's panel: in the widget's frame, or a page of its own at /chat.
//
// State is in `me` (session), `conversations` and `messages`; every change calls `draw`. Storage is this frame's
// own and is used once the visitor acts: token, drafts, and the outbox of messages that are not acknowledged yet.
import { call, CallError, chime, Link, newId, putMessage } from "./link.js";
import { el, face, icon, render } from "./text.js";

const WORDS = JSON.parse(document.getElementById("words").textContent);
const LANG = document.documentElement.lang;
const isFramed = window.parent !== window;
const app = document.getElementById("app");
const announcer = document.getElementById("announcer");

const ICONS = {
  back: "M15 5l-7 7 7 7", close: "M6 6l12 12M18 6L6 18", more: "M5 12h.01M12 12h.01M19 12h.01", send: "M4 12l16-8-6 16-3-7z",
  clip: "M19 11l-7.500 7.500a4.500 4.500 0 0 1-6.400-6.400l8-8a3 3 0 0 1 4.300 4.300l-8 8a1.500 1.500 0 0 1-2.100-2.100l7-7",
  smile: "M12 21a9 9 0 1 1 0-18 9 9 0 0 1 0 18zM8.500 14.500c2 2.500 5 2.500 7 0M9 9.500h.01M15 9.500h.01", file: "M7 3h7l4 4v14H7zM14 3v4h4", star: "M12 3.500l2.600 5.400 5.900.800-4.300 4.100 1 5.900-5.200-2.800-5.200 2.800 1-5.900-4.300-4.100 5.900-.800z",
};
const EMOJI = "😀 😃 😄 😁 😅 😂 🙂 😉 😊 😍 😘 😎 🤔 😐 😕 🙁 😢 😭 😡 😱 😴 🤒 🤷 🙏 👍 👎 👌 ✌️ 👋 👏 💪 🤝 ❤️ 💔 🎉 🔥 ⭐ ✅ ❌ ⚠️ ❓ ❗ 💡 📎 📷 📦 🚚 💳".split(" ");

function t(key, values = {}) {
  return (WORDS[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

// ---- storage: this frame's own, in memory where it is blocked ------------------------------------------------

const memory = new Map();
const shelf = {
  get(key) {
    try {
      const text = localStorage.getItem(`tidegate.${key}`);
      return text === null ? null : JSON.parse(text);
    } catch {
      return memory.get(key) ?? null;
    }
  },
  put(key, value) {
    memory.set(key, value);
    try {
      if (value === null || value === undefined || value === "") localStorage.removeItem(`tidegate.${key}`);
      else localStorage.setItem(`tidegate.${key}`, JSON.stringify(value));
    } catch { /* kept in memory */ }
  },
  clear() {
    memory.clear();
    try {
      for (const key of Object.keys(localStorage)) if (key.startsWith("tidegate.")) localStorage.removeItem(key);
    } catch { /* nothing is there */ }
  },
};
// One tab at a time, and one call at a time, does what must happen once. A browser that blocks storage has no
// locks either: then this page has its state for itself.
const turns = new Map();
function alone(name, work) {
  const turn = (turns.get(name) ?? Promise.resolve()).catch(() => {}).then(async () => {
    let isHeld = false;
    const held = () => { isHeld = true; return work(); };
    try {
      return await (navigator.locks ? navigator.locks.request(`tidegate.${name}`, held) : held());
    } catch (error) {
      if (isHeld) throw error;
      return work();
    }
  });
  turns.set(name, turn);
  return turn;
}

// ---- state ---------------------------------------------------------------------------------------------------

const state = {
  options: { ...app.dataset }, page: null, identity: null, shown: !isFramed, config: null, view: null, current: null, state: "off", fault: null, notice: null,
  typing: null, files: [], isLoaded: false, hasMore: new Map(), away: null,
};
const conversations = new Map();
const messages = new Map();
const token = () => shelf.get("token");
const outbox = () => shelf.get("outbox") ?? [];
const ask = (method, path, body, more = {}) => call(method, `/widget${path}`, body, { token: token() ?? "", ...more });

function tell(type, data = {}) {
  if (isFramed) parent.postMessage({ tidegate: type, ...data }, "*");
}

function put(conversation) {
  if (!conversation?.id) return;
  const known = conversations.get(conversation.id);
  if (known && known.version > conversation.version) return;
  conversations.set(conversation.id, { queue: known?.queue, ...known, ...conversation });
}

const inOrder = () => [...conversations.values()].sort((a, b) => (a.last_message_at < b.last_message_at ? 1 : -1));
const openOne = () => inOrder().find((one) => one.status !== "resolved");
const shownOne = () => conversations.get(state.current);

// ---- session -------------------------------------------------------------------------------------------------

async function openSession(details = {}) {
  await alone("session", async () => {
    if (token() && !details.isNew) return;
    const made = await call("POST", "/widget/sessions", {
      page_url: state.page ?? undefined, locale: LANG, name: details.name || undefined, email: details.email || undefined,
      identity: state.identity ?? undefined,
    }, { token: "" });
    shelf.put("token", made.token);
    shelf.put("who", state.identity?.user_id ?? null);
    shelf.put("visitor", made.visitor);
    for (const one of made.conversations) put(one);
  });
  tell("kept");
  link.start();
}

// A site says who its user is: another person than before starts anew, nothing is mixed. `turned` is called once
// nothing of another person is there any more.
async function identify(identity, turned = () => {}) {
  state.identity = identity;
  const isOther = () => Boolean(identity) && !(token() && shelf.get("who") === identity.user_id);
  if (!isOther()) return turned();
  // A message that is on its way arrives first, as whoever wrote it.
  const isNew = await alone("outbox", async () => {
    if (!isOther()) return false;
    startAnew(shelf.get("who") === null);
    return true;
  });
  turned();
  if (!isNew) return;
  try {
    await openSession({ isNew: true });
    state.fault = state.notice = null;
    await sync();
    // Their conversation, unless they have begun to write meanwhile.
    const known = openOne(), hasBegun = parts.input.value || outbox().length;
    if (known && !hasBegun) show("talk", known.id);
    else if (conversations.size && !hasBegun) show("home");
    flush();
  } catch (error) {
    fail(error);
  }
  // Nothing of theirs is there, or they were refused: both are said where they would write.
  state.view ??= "talk";
  draw();
}

function forget() {
  link.stop();
  shelf.clear();
  conversations.clear();
  messages.clear();
  state.current = state.view = null;
  state.files = [];
}

// Forgets the session. What nobody has sent yet goes out with the next one, unless it is another person's.
function startAnew(isOwn) {
  const kept = isOwn ? outbox() : [], draft = isOwn ? parts.input.value || shelf.get("draft.new") : "";
  forget();
  shelf.put("outbox", kept.length ? kept.map((item) => ({ ...item, conversation: null, files: [] })) : null);
  shelf.put("draft.new", draft);
  parts.input.value = draft ?? "";
}

function fail(error) {
  if (error.code === "USER_BLOCKED") state.fault = t("blocked");
  else if (error.code === "CHAT_NEEDS_LOGIN") state.fault = t("needs_login");
  else if (error.status === 401) {
    // The session has ended.
    startAnew(true);
    show("talk", null, true);
  } else if (error.status === 429) state.notice = t("limited");
  else if (error.status === 0) state.notice = null;
  else if (!(error instanceof CallError)) throw error;
  else state.notice = error.message;
  draw();
}

// ---- live ----------------------------------------------------------------------------------------------------

const link = new Link("/api/v1/widget/ws", "widget/1", {
  ticket: async () => (await ask("POST", "/ws-ticket")).ticket,
  sync: () => sync().catch(fail),
  state(word) {
    state.state = word;
    if (word === "on") flush();
    draw();
  },
  ended(code) {
    if (code === 4403) fail(new CallError(403, "USER_BLOCKED", ""));
    else fail(new CallError(401, "UNAUTHORIZED", ""));
  },
  event(type, data) {
    if (data.conversation) put(data.conversation);
    const id = data.conversation_id ?? data.conversation?.id;
    switch (type) {
      case "message.created": take(data.message); break;
      case "message.updated": case "message.deleted":
        if (messages.has(id)) putMessage(messages.get(id), data.message);
        break;
      case "typing":
        if (data.sender_role === "user") break;
        state.typing = data.on ? { id, name: data.sender?.name, until: Date.now() + 6000 } : null;
        setTimeout(draw, 6100);
        break;
      case "queue.position": {
        const one = conversations.get(id);
        if (one) one.queue = data.position ? { position: data.position, expected_wait_seconds: data.expected_wait_seconds } : null;
        break;
      }
      case "availability.updated":
        if (state.config) state.config.availability = data.teams?.[state.options.team] ?? data;
        break;
      case "conversation.assigned": { const one = conversations.get(id); if (one) one.queue = null; break; }
      case "conversation.resolved": tell("resolved", { id }); break;
    }
    draw();
  },
});

function take(message) {
  const id = message.conversation_id;
  const list = messages.get(id);
  const isNew = !list?.some((known) => known.seq === message.seq);
  if (list) putMessage(list, message);
  const rest = outbox().filter((item) => item.client_id !== message.client_id);
  if (rest.length !== outbox().length) shelf.put("outbox", rest.length ? rest : null);
  if (!isNew || message.sender_role === "user" || message.type !== "text") return;
  if (state.typing?.id === id) state.typing = null;
  const name = message.sender?.name ?? t("someone");
  announcer.textContent = t("new_message", { name, text: message.content || t("file") });
  if (shelf.get("sound")) chime();
  tell("message", { message: { conversation_id: id, name, text: message.content } });
}

// Fetches what was missed: the list, and the messages of the conversation on the screen after the last one known.
async function sync() {
  if (!token()) return;
  const { items } = await ask("GET", "/conversations?limit=50");
  for (const one of items) put(one);
  state.isLoaded = true;
  for (const id of messages.keys()) await fetchMessages(id);
  if (state.view === null && openOne()) show("talk", openOne().id, true);
  draw();
}

async function fetchMessages(id) {
  const list = messages.get(id) ?? [];
  let after = list.length ? list.at(-1).seq : null;
  for (;;) {
    const page = await ask("GET", `/conversations/${id}/messages?limit=50${after === null ? "" : `&after_seq=${after}`}`);
    for (const message of page.items) putMessage(list, message);
    messages.set(id, list);
    if (after === null) state.hasMore.set(id, page.has_more);
    if (after === null || !page.has_more || !page.items.length) break;
    after = page.items.at(-1).seq;
  }
  put(await ask("GET", `/conversations/${id}`));
}

async function fetchEarlier(id) {
  const list = messages.get(id);
  const page = await ask("GET", `/conversations/${id}/messages?limit=50&before_seq=${list[0].seq}`);
  for (const message of page.items) putMessage(list, message);
  state.hasMore.set(id, page.has_more);
}

// ---- sending: kept until acknowledged, in order, each once ----------------------------------------------------

let retryTimer = 0, tries = 0;

function send(content, files) {
  const item = { client_id: newId(), conversation: state.current, content, files, at: new Date().toISOString() };
  shelf.put("outbox", [...outbox(), item]);
  state.files = [];
  draw();
  flush();
}

const change = (id, fields) =>
  shelf.put("outbox", outbox().map((item) => (item.client_id === id ? { ...item, ...fields } : item)));
const drop = (id) => {
  const rest = outbox().filter((item) => item.client_id !== id);
  shelf.put("outbox", rest.length ? rest : null);
};

function flush() {
  clearTimeout(retryTimer);
  return alone("outbox", async () => {
    for (;;) {
      const item = outbox().find((one) => !one.failed);
      if (!item) return;
      try {
        if (!token()) await openSession(shelf.get("visitor") ?? {});
        const sent = await deliver(item);
        tries = 0;
        drop(item.client_id);
        put(sent.conversation);
        if (!messages.has(sent.conversation.id)) messages.set(sent.conversation.id, []);
        putMessage(messages.get(sent.conversation.id), sent.message);
        const earlier = item.conversation;
        for (const other of outbox()) if (other.conversation === earlier) change(other.client_id, { conversation: sent.conversation.id });
        if (state.current === earlier) show("talk", sent.conversation.id, true);
        state.notice = null;
      } catch (error) {
        if (error.status === 401 && token()) { fail(error); continue; }
        if (!(error instanceof CallError) || !error.isPassing) {
          change(item.client_id, { failed: error.message });
          fail(error);
          continue;
        }
        if (error.status === 429) state.notice = t("limited");
        tries += 1;
        const wait = Math.max((error.retryAfter ?? 0) * 1000, Math.min(30_000, 500 * 2 ** Math.min(tries, 6)) * (0.5 + Math.random() / 2));
        retryTimer = setTimeout(flush, wait);
        draw();
        return;
      }
      draw();
    }
  });
}

async function deliver(item) {
  const body = { content: item.content, client_id: item.client_id, attachments: item.files.map((file) => file.id) };
  if (item.offline) return ask("POST", "/offline", { ...item.offline, ...body, team_id: state.options.team || undefined });
  let id = item.conversation;
  if (!id) {
    try {
      return await ask("POST", "/conversations", { message: body, team_id: state.options.team || undefined });
    } catch (error) {
      // Another tab was faster, or the answer to an earlier try was lost: the message goes there, once.
      if (error.code !== "OPEN_CONVERSATION_EXISTS") throw error;
      await sync();
      id = openOne()?.id;
      if (!id) throw error;
    }
  }
  return ask("POST", `/conversations/${id}/messages`, body);
}

addEventListener("online", flush);

// ---- files ---------------------------------------------------------------------------------------------------

const size = (bytes) => new Intl.NumberFormat(LANG, { style: "unit", unit: bytes < 1e6 ? "kilobyte" : "megabyte", maximumFractionDigits: 1 }).format(bytes < 1e6 ? Math.max(1, Math.round(bytes / 1e3)) : bytes / 1e6);

async function attach(list) {
  // Nothing leaves this page before what the site asks for is filled in and agreed to.
  if (needsForm() && !token() && !readForm(true)) return;
  for (const file of list) {
    const most = state.config?.max_file_bytes ?? 10_485_760;
    if (file.size > most) { state.notice = t("too_big", { name: file.name, size: size(most) }); continue; }
    if (state.files.length >= 5) break;
    const item = { name: file.name || "image.png", size: file.size, preview: file.type.startsWith("image/") ? URL.createObjectURL(file) : null, id: null };
    state.files.push(item);
    draw();
    try {
      if (!token()) await openSession(readForm() ?? {});
      const stored = await ask("POST", `/files?name=${encodeURIComponent(item.name)}`, file, { raw: true, headers: { "content-type": "application/octet-stream" } });
      Object.assign(item, stored);
    } catch (error) {
      state.files = state.files.filter((other) => other !== item);
      state.notice = error.message;
      if (error.status === 401 || error.status === 403) fail(error);
    }
    draw();
  }
}

// ---- views ---------------------------------------------------------------------------------------------------

// `isSame`: the visitor did not ask for it, so what they were told, attached and focused stays.
function show(view, id = null, isSame = false) {
  state.view = view;
  if (!isSame) { state.files = []; state.notice = null; }
  state.current = id;
  shelfDraft();
  if (id && !messages.has(id)) fetchMessages(id).then(draw, fail);
  draw();
  if (!isSame) focusIn();
}

function focusIn() {
  if (!state.shown) return;
  requestAnimationFrame(() => grow() || (parts.form.querySelector("input:not([type=checkbox])") ?? (parts.input.closest("[hidden]") ? parts.title : parts.input)).focus({ preventScroll: true }));
}

const draftKey = () => `draft.${state.current ?? "new"}`;
function shelfDraft() {
  parts.input.value = shelf.get(draftKey()) ?? "";
  grow();
}
function grow() {
  parts.input.style.height = "auto";
  if (parts.input.scrollHeight) parts.input.style.height = `${Math.min(parts.input.scrollHeight + 2, 132)}px`;
}

const duration = (seconds) => {
  const [value, unit] = seconds < 90 ? [Math.max(1, Math.round(seconds / 10) * 10), "second"] : seconds < 5400 ? [Math.round(seconds / 60), "minute"] : [Math.round(seconds / 3600), "hour"];
  return new Intl.NumberFormat(LANG, { style: "unit", unit, unitDisplay: "long" }).format(value);
};
const clock = (at) => new Date(at).toLocaleTimeString(LANG, { hour: "2-digit", minute: "2-digit" });
function day(at) {
  const date = new Date(at), days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(date).setHours(0, 0, 0, 0)) / 86_400_000);
  return days === 0 ? t("today") : days === 1 ? t("yesterday") : date.toLocaleDateString(LANG, { day: "numeric", month: "long", year: days > 300 ? "numeric" : undefined });
}

function iconButton(name, label, onclick, more = {}) {
  return el("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick, ...more }, icon(ICONS[name]));
}

const parts = {};
function build() {
  parts.back = iconButton("back", t("back"), () => show("home"));
  parts.face = el("div", { "data-name": "" });
  parts.title = el("h1", { tabindex: "-1" });
  parts.sub = el("p", { class: "sub" });
  parts.menu = el("div", { class: "menu", id: "menu", hidden: true });
  parts.more = iconButton("more", t("more"), () => toggle(parts.menu, parts.more), { "aria-expanded": "false", "aria-controls": "menu", class: "icon dotted" });
  parts.close = iconButton("close", t("close"), () => tell("close"));
  parts.close.hidden = !isFramed;
  parts.banner = el("p", { class: "banner", role: "status", hidden: true });
  parts.body = el("div", { class: "body", tabindex: "0", role: "region", "aria-label": t("title") });
  parts.form = el("div", { class: "prechat" });
  parts.input = el("textarea", { id: "input", rows: "1", maxlength: "4000", placeholder: t("write"), "aria-label": t("write"), dir: "auto", enterkeyhint: "send" });
  parts.files = el("ul", { class: "files", hidden: true });
  parts.notice = el("p", { class: "notice", role: "alert", hidden: true });
  parts.pick = el("input", { type: "file", multiple: true, hidden: true, tabindex: "-1", "aria-label": t("attach"), onchange: (event) => { attach([...event.target.files]); event.target.value = ""; } });
  parts.emoji = el("div", { class: "emoji", id: "emoji", hidden: true, role: "group", "aria-label": t("emoji") },
    EMOJI.map((one) => el("button", { type: "button", onclick: () => insert(one) }, one)));
  parts.smile = iconButton("smile", t("emoji"), () => toggle(parts.emoji, parts.smile), { "aria-expanded": "false", "aria-controls": "emoji" });
  parts.send = el("button", { type: "submit", class: "icon go", "aria-label": t("send"), title: t("send") }, icon(ICONS.send));
  // Hidden until the site has said who its visitor is: what is written belongs to that person.
  parts.composer = el("form", { class: "composer", hidden: true, onsubmit: (event) => { event.preventDefault(); submit(); } },
    parts.notice, parts.files,
    el("div", { class: "row" }, iconButton("clip", t("attach"), () => parts.pick.click()), parts.smile, parts.input, parts.send), parts.emoji, parts.pick);
  parts.drop = el("div", { class: "drop", hidden: true }, t("drop"));
  app.replaceChildren(
    el("header", {}, parts.back, parts.face, el("div", { class: "titles" }, parts.title, parts.sub), parts.more, parts.close, parts.menu),
    parts.banner, parts.body, parts.form, parts.composer, parts.drop);

  parts.input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
  });
  parts.input.addEventListener("input", () => {
    shelf.put(draftKey(), parts.input.value);
    grow();
    typing(parts.input.value !== "");
  });
  parts.input.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) { event.preventDefault(); attach(files); }
  });
  let depth = 0;
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files") && !parts.composer.hidden;
  app.addEventListener("dragenter", (event) => { if (hasFiles(event)) { depth += 1; parts.drop.hidden = false; } });
  app.addEventListener("dragleave", () => { depth = Math.max(0, depth - 1); parts.drop.hidden = depth === 0; });
  app.addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  app.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    parts.drop.hidden = true;
    attach([...event.dataTransfer.files]);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = [parts.menu, parts.emoji].find((one) => !one.hidden);
    if (open) toggle(open, open === parts.menu ? parts.more : parts.smile);
    else tell("close");
  });
  document.addEventListener("click", (event) => {
    if (!parts.menu.hidden && !parts.menu.contains(event.target) && !parts.more.contains(event.target)) toggle(parts.menu, parts.more, false);
  });
}

function toggle(panel, button, focus = true) {
  panel.hidden = !panel.hidden;
  button.setAttribute("aria-expanded", String(!panel.hidden));
  if (!panel.hidden) panel.querySelector("button")?.focus();
  else if (focus) button.focus();
}

function insert(text) {
  parts.input.setRangeText(text, parts.input.selectionStart, parts.input.selectionEnd, "end");
  parts.input.dispatchEvent(new Event("input"));
  toggle(parts.emoji, parts.smile, false);
  parts.input.focus();
}

let typedAt = 0;
function typing(on) {
  if (!state.current || (on && Date.now() - typedAt < 3000)) return;
  typedAt = on ? Date.now() : 0;
  link.send({ t: "typing", conversation_id: state.current, on, note: false });
}

// ---- the form before the first message -------------------------------------------------------------------------

const isOffline = () => state.config?.availability?.state === "offline";
const needsForm = () => state.view === "talk" && !state.current && !outbox().length && !shelf.get("visitor")?.verified;

function formFields() {
  if (isOffline()) return ["name", "email*"];
  if (state.options.fields !== undefined) return state.options.fields.split(/[\s,]+/).filter((one) => /^(name|email)\*?$/.test(one));
  return state.config?.prechat_fields ?? [];
}

let formShape = "";
function drawForm() {
  const fields = needsForm() ? formFields() : [];
  const consent = needsForm() ? state.options.consent : "";
  const shape = JSON.stringify([fields, consent, isOffline()]);
  if (shape === formShape) return;
  formShape = shape;
  const visitor = shelf.get("visitor") ?? {};
  parts.form.replaceChildren(...fields.map((field) => {
    const name = field.replace("*", ""), isNeeded = field.endsWith("*");
    return el("label", {}, el("span", {}, t(name), isNeeded ? "" : el("small", {}, ` (${t("optional")})`)),
      el("input", { name, type: name === "email" ? "email" : "text", autocomplete: name, maxlength: "200", required: isNeeded, value: visitor[name] ?? "" }));
  }));
  if (consent) {
    const link = /^https?:\/\//.test(state.options.consentUrl ?? "") ? el("a", { href: state.options.consentUrl, target: "_blank", rel: "noopener" }, t("privacy")) : null;
    parts.form.append(el("label", { class: "consent" }, el("input", { type: "checkbox", name: "consent", required: true }), el("span", {}, consent, " ", link)));
  }
}

// What the form holds; nothing when something is missing, which is then said.
function readForm(isFinal = false) {
  const found = {};
  for (const input of parts.form.querySelectorAll("input")) {
    const value = input.type === "checkbox" ? input.checked : input.value.trim();
    const wrong = input.required && !value ? t(input.type === "checkbox" ? "consent" : "required") : input.type === "email" && value && !/^[^\s@]+@[^\s@]+\.[^\s@]+$/.test(value) ? t("bad_email") : "";
    input.setAttribute("aria-invalid", String(isFinal && wrong !== ""));
    if (wrong && isFinal) {
      state.notice = wrong;
      draw();
      input.focus();
      return null;
    }
    if (!wrong && input.type !== "checkbox") found[input.name] = value || undefined;
  }
  return found;
}

async function submit() {
  const content = parts.input.value.trim();
  const files = state.files.filter((file) => file.id).map(({ id, name, mime, size, is_image, url }) => ({ id, name, mime, size, is_image, url }));
  if ((!content && !files.length) || state.files.some((file) => !file.id)) return;
  let offline;
  if (needsForm()) {
    const details = readForm(true);
    if (!details) return;
    shelf.put("visitor", { ...shelf.get("visitor"), ...details });
    if (token() && (details.name || details.email)) ask("PATCH", "/session", details).catch(() => {});
    if (isOffline()) offline = { email: details.email, name: details.name };
  }
  parts.input.value = "";
  shelf.put(draftKey(), null);
  grow();
  typing(false);
  state.notice = null;
  if (offline) {
    shelf.put("outbox", [...outbox(), { client_id: newId(), conversation: null, content, files, offline, at: new Date().toISOString() }]);
    state.away = offline.email;
    state.files = [];
    draw();
    flush();
  } else send(content, files);
  parts.input.focus();
}

// ---- drawing ---------------------------------------------------------------------------------------------------

function drawHead() {
  const one = shownOne(), availability = state.config?.availability;
  parts.back.hidden = state.view !== "talk" || !conversations.size;
  parts.more.hidden = state.view !== "talk";
  parts.title.textContent = state.options.title || t("title");
  const name = one?.status === "resolved" ? null : one?.assignee?.name;
  if (parts.face.dataset.name !== (name ?? "")) {
    parts.face.dataset.name = name ?? "";
    parts.face.replaceChildren(...(name ? [face(name)] : []));
  }
  let sub = availability ? t(availability.state) : "";
  if (one?.status === "resolved") sub = t("status_resolved");
  else if (one?.queue?.position) {
    const wait = one.queue.expected_wait_seconds;
    sub = (one.queue.position === 1 ? t("next") : t("position", { n: one.queue.position })) + (wait ? `, ${t("eta", { time: duration(wait) })}` : "");
  } else if (one?.assignee) sub = t("with", { name: one.assignee.name });
  else if (one?.bot) sub = t("bot");
  else if (one?.queue_state === "waiting") sub = t("looking");
  else if (!one && availability?.state === "online" && availability.expected_wait_seconds) sub = `${t("online")}. ${t("wait", { time: duration(availability.expected_wait_seconds) })}`;
  else if (!one && availability?.state === "offline" && availability.opens_at) sub = t("opens", { when: new Date(availability.opens_at).toLocaleString(LANG, { weekday: "long", hour: "2-digit", minute: "2-digit" }) });
  parts.sub.textContent = sub;
  parts.sub.dataset.state = one?.status === "resolved" ? "" : availability?.state ?? "";
  if (!parts.menu.hidden) return;
  const hasSound = Boolean(shelf.get("sound"));
  parts.menu.replaceChildren(
    el("button", { type: "button", onclick: () => { shelf.put("sound", hasSound ? null : true); toggle(parts.menu, parts.more); if (!hasSound) chime(); draw(); } }, t(hasSound ? "sound_off" : "sound_on")),
    ...(one ? [el("button", { type: "button", onclick: () => { toggle(parts.menu, parts.more); saveTranscript(); } }, t("transcript"))] : []),
    ...(canMail(one) ? [el("button", { type: "button", onclick: () => { toggle(parts.menu, parts.more); mailTranscript(); } }, t("mail_transcript"))] : []),
    ...(one && one.status !== "resolved" ? [el("button", { type: "button", onclick: sureToEnd }, t("end"))] : []));
}

// Ending cannot be taken back, so it is asked once more, in the same menu.
function sureToEnd() {
  parts.menu.replaceChildren(el("p", {}, t("end_sure")), el("button", { type: "button", class: "danger", onclick: endConversation }, t("end")), el("button", { type: "button", onclick: () => toggle(parts.menu, parts.more) }, t("cancel")));
  parts.menu.querySelector("button").focus();
}

async function endConversation() {
  toggle(parts.menu, parts.more);
  try {
    put(await ask("POST", `/conversations/${state.current}/close`, {}));
    draw();
  } catch (error) { fail(error); }
}

function attachment(file) {
  const url = new URL(file.url, location.href);
  if (url.origin !== location.origin) return null;
  const label = t(file.is_image ? "image" : "download", { name: file.name });
  return file.is_image
    ? el("a", { class: "picture", href: url.href, target: "_blank", rel: "noopener", "aria-label": label }, el("img", { src: url.href, alt: "", loading: "lazy" }))
    : el("a", { class: "file", href: url.href, download: file.name, "aria-label": label }, icon(ICONS.file), el("span", {}, el("b", {}, file.name), el("small", {}, size(file.size))));
}

function bubble({ role, name, at, content, files = [], deleted, edited, status }) {
  const isMine = role === "user";
  return el("li", { class: `msg ${isMine ? "mine" : "theirs"}` }, isMine ? null : face(name),
    el("span", { class: "sr" }, `${isMine ? t("you") : name ?? t("someone")}: `),
    files.map(attachment),
    deleted ? el("div", { class: "bubble gone" }, t("deleted")) : content ? el("div", { class: "bubble" }, render(content)) : null,
    el("div", { class: "meta" }, [isMine ? null : name, clock(at), edited ? t("edited") : null].filter(Boolean).join(" · "), status ?? ""));
}

// Nodes are kept by key while nothing about them changed, so that a reader's place and selection stay.
const drawn = new Map();
function keyed(key, shape, make) {
  const known = drawn.get(key);
  if (known?.shape === shape) return known.node;
  const node = make();
  drawn.set(key, { shape, node });
  return node;
}

function drawTalk() {
  const one = shownOne(), list = messages.get(state.current) ?? [];
  const mine = outbox().filter((item) => item.conversation === state.current && !list.some((known) => known.client_id === item.client_id));
  const nodes = [];
  if (!one && !mine.length) nodes.push(keyed("hello", state.options.greeting ?? "", () => el("li", { class: "msg theirs" }, el("div", { class: "bubble" }, render(state.options.greeting || t("greeting"))))));
  if (!one && !mine.length && isOffline()) nodes.push(keyed("leave", "", () => el("li", { class: "note" }, t("leave"))));
  if (state.hasMore.get(state.current)) nodes.push(keyed("more", state.current, () => el("li", { class: "note" }, el("button", { type: "button", class: "plain", onclick: () => fetchEarlier(state.current).then(draw, fail) }, t("load")))));
  const lastMine = list.findLast((message) => message.sender_role === "user" && !message.deleted);
  let last = "";
  for (const message of list) {
    const today = day(message.created_at);
    if (today !== last) nodes.push(keyed(`day ${state.current} ${today}`, "", () => el("li", { class: "day" }, today)));
    last = today;
    if (message.type === "event") {
      if (WORDS[message.content]) nodes.push(keyed(message.id, "", () => el("li", { class: "note" }, t(message.content))));
      continue;
    }
    const status = message === lastMine && !mine.length ? t(one?.agent_read_seq >= message.seq ? "read" : "sent") : "";
    nodes.push(keyed(message.id, `${message.edited_at} ${message.deleted} ${status}`, () => bubble({
      role: message.sender_role, name: message.sender?.name, at: message.created_at, content: message.content, files: message.attachments, deleted: message.deleted, edited: message.edited_at,
      status: status ? ` · ${status}` : "" })));
  }
  for (const item of mine) {
    nodes.push(keyed(item.client_id, item.failed ?? "", () => bubble({ role: "user", at: item.at, content: item.content, files: item.files,
      status: item.failed
        ? el("span", { class: "failed" }, ` · ${t("failed")}: ${item.failed} `,
            el("button", { type: "button", class: "plain", onclick: () => { change(item.client_id, { failed: undefined }); draw(); flush(); } }, t("retry")), " ",
            el("button", { type: "button", class: "plain", onclick: () => { drop(item.client_id); draw(); } }, t("discard")))
        : ` · ${t("sending")}` })));
  }
  const email = shelf.get("visitor")?.email;
  if (one?.status === "pending" && state.away) nodes.push(keyed("left", state.away, () => el("li", { class: "note" }, t("left", { email: state.away }))));
  else if (one && one.status !== "resolved" && email && state.config?.email_replies && list.length) nodes.push(keyed("mail", email, () => el("li", { class: "note" }, t("by_mail", { email }))));
  const typist = state.typing?.id === state.current && state.typing.until > Date.now() ? state.typing.name ?? t("someone") : null;
  if (typist) nodes.push(keyed("typing", typist, () => el("li", { class: "msg theirs" }, el("div", { class: "bubble dots", role: "img", "aria-label": t("typing", { name: typist }) }, el("i"), el("i"), el("i")))));
  if (one?.status === "resolved") nodes.push(keyed(`end ${one.id}`, String(one.rating), () => ending(one)));
  return nodes;
}

function ending(one) {
  const actions = el("div", { class: "actions" },
    el("button", { type: "button", class: "plain", onclick: saveTranscript }, t("transcript")),
    canMail(one) ? el("button", { type: "button", class: "plain", onclick: mailTranscript }, t("mail_transcript")) : null,
    el("button", { type: "button", class: "plain", onclick: () => show("talk") }, t("new")));
  const head = el("p", {}, `${t("resolved")} ${t("again")}`);
  if (one.rating) return el("li", { class: "card" }, head, el("p", {}, el("b", {}, t("thanks"))), actions);
  const comment = el("textarea", { rows: "2", maxlength: "1000", placeholder: t("comment"), "aria-label": t("comment") });
  const form = el("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      const score = Number(new FormData(event.target).get("score"));
      if (!score) return;
      try {
        await ask("POST", `/conversations/${one.id}/rating`, { score, comment: comment.value.trim() || undefined });
      } catch (error) {
        if (error.code !== "ALREADY_RATED") return fail(error);
      }
      one.rating = score;
      draw();
    },
  }, el("fieldset", {}, el("legend", {}, t("rate")), el("div", { class: "scores" }, [1, 2, 3, 4, 5].map((n) =>
    el("label", {}, el("input", { type: "radio", name: "score", value: String(n), required: true, "aria-label": t("score", { n }) }), icon(ICONS.star))))),
  comment, el("button", { type: "submit", class: "solid" }, t("rate_send")));
  return el("li", { class: "card" }, head, form, actions);
}

function drawHome() {
  return [
    el("li", { class: "hero" }, el("p", {}, state.options.greeting || t("greeting")),
      openOne() ? null : el("button", { type: "button", class: "solid", onclick: () => show("talk") }, t("new"))),
    el("li", { class: "label" }, t("earlier")),
    ...inOrder().map((one) => el("li", {}, el("button", { type: "button", class: "past", onclick: () => show("talk", one.id) },
      el("span", {}, el("b", {}, one.subject || one.assignee?.name || t(`status_${one.status}`)), el("small", {}, `${t(`status_${one.status}`)} · ${day(one.last_message_at)}, ${clock(one.last_message_at)}`)),
      one.unread_visitor ? el("span", { class: "count", "aria-label": t("unread", { n: one.unread_visitor }) }, String(one.unread_visitor)) : null))),
  ];
}

function drawFiles() {
  parts.files.hidden = !state.files.length;
  parts.files.replaceChildren(...state.files.map((file) => el("li", { class: file.id ? "" : "loading" },
    file.preview ? el("img", { src: file.preview, alt: "" }) : icon(ICONS.file),
    el("span", {}, file.name, el("small", {}, file.id ? size(file.size) : t("uploading"))),
    iconButton("close", t("remove", { name: file.name }), () => { state.files = state.files.filter((other) => other !== file); draw(); parts.input.focus(); }))));
}

let list = null, place = "";
function draw() {
  if (!state.config && !state.fault) return;
  drawHead();
  const isTalk = state.view === "talk";
  const here = `${state.view} ${state.current}`;
  const atEnd = here !== place || parts.body.scrollHeight - parts.body.scrollTop - parts.body.clientHeight < 80;
  if (!list || here !== place) {
    drawn.clear();
    list = el("ol", { class: isTalk ? "talk" : "home" });
    parts.body.replaceChildren(list);
  }
  const nodes = state.fault ? [el("li", { class: "note" }, state.fault)] : isTalk ? drawTalk() : drawHome();
  if (isTalk) {
    const wanted = new Set(nodes);
    for (const node of [...list.children]) if (!wanted.has(node)) node.remove();
    nodes.forEach((node, n) => { if (list.children[n] !== node) list.insertBefore(node, list.children[n] ?? null); });
  } else list.replaceChildren(...nodes);
  parts.form.hidden = !isTalk || Boolean(state.fault) || !needsForm();
  if (!parts.form.hidden) drawForm();
  parts.composer.hidden = !isTalk || Boolean(state.fault);
  parts.notice.textContent = state.notice ?? "";
  parts.notice.hidden = !state.notice;
  drawFiles();
  const isLost = (token() && state.state === "off" && state.wasOn) || navigator.onLine === false;
  parts.banner.hidden = !isLost;
  parts.banner.textContent = isLost ? t("lost") : "";
  if (state.state === "on") state.wasOn = true;
  if (atEnd && isTalk) parts.body.scrollTop = parts.body.scrollHeight;
  place = here;
  markRead();
  const unread = [...conversations.values()].reduce((sum, one) => sum + (one.unread_visitor ?? 0), 0);
  if (unread !== state.unread) { state.unread = unread; tell("unread", { count: unread }); }
  if (!isFramed) document.title = (unread ? `(${unread}) ` : "") + t("title");
}

const marked = new Map();
function markRead() {
  const one = shownOne(), read = messages.get(state.current)?.at(-1)?.seq ?? 0;
  if (!one || !state.shown || document.hidden || state.view !== "talk" || read <= (one.visitor_read_seq ?? 0) || read <= (marked.get(one.id) ?? 0)) return;
  marked.set(one.id, read);
  ask("POST", `/conversations/${one.id}/read`, { seq: read }).then(() => {
    one.visitor_read_seq = Math.max(read, one.visitor_read_seq ?? 0);
    if (read >= one.last_seq) one.unread_visitor = 0;
    draw();
  }, () => marked.delete(one.id));
}

async function saveTranscript() {
  while (state.hasMore.get(state.current)) await fetchEarlier(state.current);
  const lines = (messages.get(state.current) ?? []).filter((message) => message.type === "text").map((message) =>
    `${new Date(message.created_at).toLocaleString(LANG)}  ${message.sender_role === "user" ? t("you") : message.sender?.name ?? t("someone")}: ${message.deleted ? t("deleted") : [message.content, ...message.attachments.map((file) => `[${file.name}]`)].filter(Boolean).join(" ")}`);
  const url = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/plain" }));
  el("a", { href: url, download: `${state.current}.txt` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Once somebody has answered, to the visitor's own address.
const canMail = (one) => one && state.config?.email_replies && shelf.get("visitor")?.email && messages.get(one.id)?.some((message) => message.sender_role === "admin");
async function mailTranscript() {
  try {
    const { email } = await ask("POST", `/conversations/${state.current}/transcript`);
    state.notice = t("mailed", { email });
    draw();
  } catch (error) { fail(error); }
}

// ---- colours: the site's own, with text on it that can be read -----------------------------------------------

function paint(hex) {
  if (!/^#[0-9a-f]{6}$/i.test(hex ?? "")) return;
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255).map((c) => c ** 2.2);
  const style = document.documentElement.style;
  style.setProperty("--brand", hex);
  style.setProperty("--on-brand", 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff");
}

// ---- start -----------------------------------------------------------------------------------------------------

function setOptions(options) {
  for (const [name, value] of Object.entries(options ?? {})) if (typeof value === "string") state.options[name] = value.slice(0, 500);
  paint(state.options.color);
}

// The link of an e-mail leads back to a conversation, as the visitor it was sent to.
const RETURN = isFramed ? null : /^#return=([\w.~-]+)$/.exec(location.hash)?.[1];
async function comeBack() {
  history.replaceState(null, "", location.pathname + location.search);
  const made = await call("POST", "/widget/return", { link: RETURN }, { token: "" });
  forget();
  shelf.put("token", made.token);
  shelf.put("visitor", made.visitor);
  for (const one of made.conversations) put(one);
  return made.conversation_id;
}

// Who is there counts by team, where the site names one.
async function askTeam() {
  if (!state.options.team || !state.config) return;
  const found = await call("GET", `/widget/availability?team_id=${encodeURIComponent(state.options.team)}`, undefined, { token: "" }).catch(() => null);
  if (found) state.config.availability = found;
  draw();
}

// The site says who its visitor is before anything is shown: whoever begins to write is that person.
let introduced;
const introduction = isFramed ? new Promise((done) => { introduced = done; }) : null;

async function begin() {
  await introduction;
  try {
    state.config = await call("GET", "/widget/config", undefined, { token: "" });
    state.fault = null;
    askTeam();
  } catch (error) {
    state.fault = error.code === "USER_BLOCKED" ? t("blocked") : t("gone");
    setTimeout(begin, 15_000);
    return draw();
  }
  let back = null, isBadLink = false;
  if (RETURN && location.hash) {
    try { back = await comeBack(); } catch (error) {
      if (error.code === "BAD_LINK") isBadLink = true;
      else fail(error);
    }
  }
  if (!state.config.anonymous_chat && !state.identity && !token()) state.fault = t("needs_login");
  if (token()) {
    try {
      await sync();
      link.start();
    } catch (error) { fail(error); }
  }
  // Without taking away what was said meanwhile: an identity may be refused before the settings are here.
  if (back) show("talk", back, true);
  else if (state.view === null) show(conversations.size ? "home" : "talk", null, true);
  if (isBadLink) state.notice = t("bad_link");
  draw();
  flush();
  if (state.shown) focusIn();
}

addEventListener("message", (event) => {
  if (!isFramed || event.source !== parent || typeof event.data?.tidegate !== "string") return;
  const data = event.data;
  switch (data.tidegate) {
    case "init":
      setOptions(data.options);
      state.page = String(data.page ?? "").slice(0, 1000);
      state.shown = data.shown === true;
      identify(data.identity, introduced);
      if (state.identity) state.fault = null;
      askTeam();
      draw();
      return state.shown && focusIn();
    case "open":
      state.shown = true;
      state.page = String(data.page ?? "").slice(0, 1000);
      if (token()) ask("PATCH", "/session", { page_url: state.page }).catch(() => {});
      draw();
      return focusIn();
    case "close": state.shown = false; return;
    case "identify": return identify(data.identity);
    case "shutdown":
      return (token() ? ask("DELETE", "/session", undefined, { keepalive: true }) : Promise.resolve()).catch(() => {}).finally(() => { forget(); draw(); });
  }
});

// Other tabs: a session, a draft or a message of theirs is ours too.
addEventListener("storage", (event) => {
  if (event.key === "tidegate.token") {
    if (event.newValue) { link.start(); sync().catch(fail); } else { link.stop(); conversations.clear(); messages.clear(); state.current = null; state.view = "talk"; }
  } else if (event.key === `tidegate.${draftKey()}` && document.activeElement !== parts.input) shelfDraft();
  draw();
});
document.addEventListener("visibilitychange", draw);
addEventListener("focus", draw);

build();
setOptions({});
begin();
tell("ready");
