// The agents' console: conversations on the left, the one that is open in the middle, its visitor on the right.
// Live events keep everything current; after a break without resume it fetches anew.
import { call, chime, Link, newId, putMessage } from "./link.js";
import { Rows } from "./rows.js";
import { el, face, icon, render, safeLink } from "./text.js";

const app = document.getElementById("app");
const ICONS = {
  back: "M15 5l-7 7 7 7", close: "M6 6l12 12M18 6L6 18", search: "M11 18a7 7 0 1 1 0-14 7 7 0 0 1 0 14zM16 16l5 5", clip: "M19 11l-7.500 7.500a4.500 4.500 0 0 1-6.400-6.400l8-8a3 3 0 0 1 4.300 4.300l-8 8a1.500 1.500 0 0 1-2.100-2.100l7-7",
  person: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 21a8 8 0 0 1 16 0", keys: "M3 7h18v11H3zM7 11h.01M11 11h.01M15 11h.01M8 15h8", check: "M4 12.500l5 5L20 6.500", clock: "M12 21a9 9 0 1 1 0-18 9 9 0 0 1 0 18zM12 7v5l3.500 2",
  move: "M4 8h13l-4-4M20 16H7l4 4", tag: "M4 4h8l8 8-8 8-8-8zM8.500 8.500h.01", file: "M7 3h7l4 4v14H7zM14 3v4h4", menu: "M4 6h16M4 12h16M4 18h16", verified: "M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6zM8.500 12l2.500 2.500 4.500-5", logout: "M10 4H5v16h5M15 8l4 4-4 4M19 12H9", desk: "M4 5.500h16v11h-9l-4.500 3.500v-3.500h-2.500z", merge: "M6 4v3a6 6 0 0 0 6 6v7M18 4v3a6 6 0 0 1-6 6M9 17l3 3 3-3", flag: "M6 21V4h11l-2 4 2 4H6", chart: "M5 20V11M12 20V4M19 20v-6", ban: "M12 21a9 9 0 1 1 0-18 9 9 0 0 1 0 18zM6 6l12 12",
};
const STATUSES = { online: "Online", busy: "Busy", away: "Away", until: "For a while…" };
const VIEWS = [["mine", "Mine"], ["unassigned", "Unassigned"], ["all", "All open"], ["unread", "Unread"], ["mentions", "Mentions"], ["team", "My team"], ["snoozed", "Snoozed"], ["resolved", "Resolved"]];
const PRIORITIES = ["urgent", "high", "normal", "low"];
const UNDO_MS = 5000;
const PAGE = 100;

const state = {
  me: null, presence: null, view: "mine", query: "", counts: {}, items: [], next: null, isDirty: false, isLoading: false, total: null,
  open: null, messages: new Map(), hasMore: new Map(), viewers: new Map(), typing: new Map(), agents: [], teams: [], presences: new Map(), canned: [], chosen: new Set(),
  hasPush: false, mode: "reply", pending: [], files: [], drafts: new Map(), visitor: null, earlier: [], hasDetails: false, isOff: false,
};
const known = new Map();
const parts = {};
const ask = (method, path, body, more) => call(method, path, body, more).catch((error) => {
  if (error.status === 401) location.assign(`/desk/login?next=${encodeURIComponent(location.hash)}`);
  throw error;
});

const setting = {
  get(key, otherwise) { try { return JSON.parse(localStorage.getItem(`tidegate.desk.${key}`)) ?? otherwise; } catch { return otherwise; } },
  put(key, value) { try { localStorage.setItem(`tidegate.desk.${key}`, JSON.stringify(value)); } catch { /* not kept */ } },
};

// ---- small things ----------------------------------------------------------------------------------------------

const button = (label, onclick, more = {}) => el("button", { type: "button", class: "btn s", onclick, ...more }, more.icon ? icon(ICONS[more.icon]) : null, el("span", {}, label));
// Only the picture; its name is told to screen readers and on hover.
const tool = (label, name, onclick, more = {}) => el("button", { type: "button", class: "btn s tool", "aria-label": label, onclick, ...more }, icon(ICONS[name]));
const badge = (word, tone = "") => el("span", { class: `badge ${tone}` }, word);
const nameOf = (one) => one.visitor?.name || one.visitor?.email || `Visitor ${String(one.visitor?.id ?? "").slice(-4)}`;
const clock = (at) => new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
const full = (at) => new Date(at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
function ago(at) {
  const seconds = Math.max(0, (Date.now() - Date.parse(at)) / 1000);
  return seconds < 60 ? "now" : seconds < 3600 ? `${Math.floor(seconds / 60)} min` : seconds < 86_400 ? `${Math.floor(seconds / 3600)} h` : seconds < 7 * 86_400 ? `${Math.floor(seconds / 86_400)} d` : new Date(at).toLocaleDateString([], { day: "numeric", month: "short" });
}
const bytes = (count) => (count < 1e6 ? `${Math.max(1, Math.round(count / 1e3))} kB` : `${(count / 1e6).toFixed(1)} MB`);

function toast(text, isBad = false, action = null) {
  const node = el("div", { class: `toast ${isBad ? "bad" : ""}`, role: isBad ? "alert" : "status" }, el("span", {}, text), action, el("button", { type: "button", "aria-label": "Dismiss", onclick: () => node.remove() }, "×"));
  parts.toasts.append(node);
  setTimeout(() => node.remove(), isBad ? 9000 : 5000);
  return node;
}
const trouble = (error) => { if (error.status !== 401) toast(error.message, true); };
async function attempt(work, done) {
  try {
    const found = await work();
    if (done) toast(done);
    return found;
  } catch (error) {
    trouble(error);
    return null;
  }
}

// A dialog with a form; resolves with the fields, or with nothing.
function prompt(title, fields, verb, lead = "") {
  return new Promise((resolve) => {
    const form = el("form", { method: "dialog", class: "dialog-body" }, el("h2", {}, title), lead ? el("p", {}, lead) : null, fields,
      el("div", { class: "dialog-foot" }, el("button", { type: "button", class: "btn", onclick: () => box.close() }, "Cancel"), el("button", { type: "submit", class: "btn primary", value: "yes" }, verb)));
    const box = el("dialog", { "aria-label": title }, form);
    form.addEventListener("submit", () => resolve(Object.fromEntries(new FormData(form))));
    box.addEventListener("close", () => { box.remove(); resolve(null); });
    document.body.append(box);
    box.showModal();
    form.querySelector("input:not([type=hidden]), select, textarea")?.focus();
  });
}
const field = (label, input, hint) => el("label", { class: "field" }, el("span", {}, label), input, hint ? el("small", {}, hint) : null);
const select = (name, options, value) => el("select", { name, class: "input" }, options.map(([key, word]) => el("option", { value: key, selected: key === value }, word)));

// ---- the list --------------------------------------------------------------------------------------------------

function belongs(one) {
  if (state.query) return state.items.some((other) => other.id === one.id);
  const mine = one.assignee?.id === state.me.id;
  switch (state.view) {
    case "resolved": return one.status === "resolved";
    case "snoozed": return one.status === "pending";
    case "mine": return one.status === "open" && mine;
    case "unassigned": return one.status === "open" && !one.assignee;
    case "unread": return one.status === "open" && one.unread_agent > 0 && !one.bot;
    case "mentions": return one.status === "open" && one.mentions.includes(state.me.id);
    case "team": return one.status === "open" && state.me.team_ids.includes(one.team_id);
    default: return one.status === "open";
  }
}

// The order of the server: unread first, then priority, then the longest waiting.
function compare(a, b) {
  const text = (x, y) => (x < y ? -1 : x > y ? 1 : 0);
  if (state.view === "resolved" || state.query) return text(b.last_message_at, a.last_message_at) || text(b.id, a.id);
  const unread = (one) => (one.unread_agent > 0 && !one.bot ? 0 : 1);
  return unread(a) - unread(b) || PRIORITIES.indexOf(a.priority) - PRIORITIES.indexOf(b.priority) || text(a.waiting_since ?? "9", b.waiting_since ?? "9") || text(b.last_message_at, a.last_message_at) || text(a.id, b.id);
}

function put(one) {
  if (!one?.id) return null;
  const before = known.get(one.id);
  if (before && before.version > one.version) return before;
  known.set(one.id, { ...before, ...one });
  return known.get(one.id);
}

function listPath(cursor, limit = PAGE) {
  const query = new URLSearchParams({ limit, sort: state.view === "resolved" || state.query ? "recent" : "urgency" });
  if (state.view === "resolved") { query.set("view", "all"); query.set("status", "resolved"); } else query.set("view", state.query ? "all" : state.view);
  if (state.query) query.set("text", state.query);
  if (cursor) query.set("cursor", cursor);
  return `/conversations?${query}`;
}

let listRun = 0;
async function loadList() {
  const run = (listRun += 1), enough = Math.max(PAGE, state.items.length);
  let cursor = null;
  const items = [];
  do {
    const page = await ask("GET", listPath(cursor, Math.min(1000, Math.max(PAGE, enough - items.length))));
    if (run !== listRun) return;
    items.push(...page.items.map(put));
    cursor = page.next_cursor;
    state.counts = page.counts ?? state.counts;
  } while (cursor && items.length < enough);
  state.items = items;
  state.next = cursor;
  state.isDirty = false;
  drawViews();
  drawList();
}

// The next page; when conversations moved since, everything up to here anew, so that none is skipped.
async function loadMore() {
  if (!state.next || state.isLoading) return;
  state.isLoading = true;
  const run = listRun;
  try {
    if (state.isDirty) await loadList();
    else {
      const page = await ask("GET", listPath(state.next, 500));
      if (run !== listRun) return;
      const have = new Set(state.items.map((one) => one.id));
      state.items = state.items.concat(page.items.map(put).filter((one) => !have.has(one.id)));
      state.next = page.next_cursor;
      drawList();
    }
  } catch (error) {
    trouble(error);
  } finally {
    state.isLoading = false;
  }
  if (state.next) parts.rows.draw();
}

let countTimer = 0;
function countSoon() {
  if (countTimer) return;
  countTimer = setTimeout(async () => {
    countTimer = 0;
    const page = await ask("GET", "/conversations?view=mine&limit=1").catch(() => null);
    if (page?.counts) { state.counts = page.counts; drawViews(); drawList(); }
  }, 400);
}

function place(one) {
  const at = state.items.findIndex((other) => other.id === one.id);
  if (at >= 0) state.items.splice(at, 1);
  // The open conversation stays in the list until another one is opened.
  if (belongs(one) || (at >= 0 && state.open === one.id && one.status !== "resolved")) {
    const to = state.items.findIndex((other) => compare(one, other) < 0);
    if (to >= 0) state.items.splice(to, 0, one);
    else if (!state.next || at >= 0) state.items.push(one);
  }
  if (at >= 0 && state.next) state.isDirty = true;
  countSoon();
}

function tones(one) {
  return one.sla?.state === "breached" ? "bad" : one.sla?.state === "at_risk" ? "warn" : "";
}

function row(one) {
  const isOpen = state.open === one.id;
  const box = el("input", { type: "checkbox", "aria-label": `Select ${nameOf(one)}`, "data-focus": "check", checked: state.chosen.has(one.id), onchange: (event) => choose(one.id, event.target.checked) });
  const typist = state.typing.get(one.id);
  const who = { user: "", admin: "You: ", bot: "Bot: ", system: "" }[one.last_message?.sender_role] ?? "";
  return el("div", { class: `conversation ${isOpen ? "open" : ""} ${one.unread_agent && !one.bot ? "unread" : ""}` }, el("div", { class: "whose" }, face(nameOf(one)), box),
    el("button", { type: "button", class: "pick", "data-focus": "open", "aria-current": isOpen ? "true" : null, onclick: () => go(one.id) },
      el("span", { class: "row-line" }, el("b", { class: "clip-line" }, nameOf(one)), one.visitor?.verified ? el("span", { class: "tick", title: "Verified" }, icon(ICONS.verified), el("span", { class: "sr" }, "verified")) : null, el("time", { datetime: one.last_message_at, title: full(one.last_message_at) }, ago(one.last_message_at))),
      el("span", { class: "row-line last-words" }, el("span", { class: "clip-line" }, typist ? `${typist.name ?? "Visitor"} is typing…` : (one.last_message?.sender_role === "admin" && one.assignee?.id !== state.me.id ? "" : who) + ((one.last_message?.preview ?? "").replace(/\*\*|`|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)/g, "") || "Message deleted")), one.unread_agent ? el("span", { class: "count" }, String(one.unread_agent), el("span", { class: "sr" }, " unread")) : null),
      el("span", { class: "row-line foot" },
        one.priority !== "normal" ? badge(one.priority, { urgent: "bad", high: "warn" }[one.priority] ?? "") : null,
        tones(one) ? badge(one.sla.state === "breached" ? "late" : "due soon", tones(one)) : null,
        one.bot ? badge("bot") : null, one.channel === "offline" ? badge("left a message", "accent") : null,
        one.tags.slice(0, 2).map((tag) => badge(tag, "mono")),
        el("span", { class: "owner clip-line" }, one.status === "pending" && one.wakes_at ? `until ${full(one.wakes_at)}` : one.assignee ? (one.assignee.id === state.me.id ? "" : one.assignee.name) : one.waiting_since ? `waiting ${ago(one.waiting_since)}` : "unassigned"))));
}

function drawList() {
  const count = state.query || state.view === "resolved" ? state.items.length + (state.next ? 1 : 0) : Math.max(state.items.length, state.next ? state.counts[state.view] ?? 0 : 0);
  parts.rows.set(state.items, count);
  parts.none.hidden = state.items.length > 0;
  parts.none.textContent = state.query ? "Nothing found." : { mine: "Nothing is assigned to you. Press W to take the next one.", unassigned: "Nobody is waiting.", unread: "Everything is read." }[state.view] ?? "No conversations here.";
  drawBulk();
}

function drawViews() {
  parts.views.replaceChildren(...VIEWS.map(([view, word], n) => el("button", { type: "button", class: "view", "aria-current": state.view === view && !state.query ? "page" : null, title: `${word} (${n + 1})`, onclick: () => showView(view) },
    el("span", {}, word), view in state.counts ? el("span", { class: "count" }, String(state.counts[view])) : null)));
  document.title = `${state.counts.unread ? `(${state.counts.unread}) ` : ""}Desk · Tidegate`;
}

async function showView(view, query = "") {
  state.view = view;
  state.query = query;
  if (!query) parts.search.value = "";
  state.items = [];
  state.next = null;
  state.chosen.clear();
  parts.scroller.scrollTop = 0;
  document.body.classList.remove("menu-open");
  setting.put("view", view);
  hash();
  drawViews();
  await attempt(loadList);
}

// ---- several at once -------------------------------------------------------------------------------------------

function choose(id, on) {
  if (on) state.chosen.add(id);
  else state.chosen.delete(id);
  parts.rows.set(state.items, parts.rows.total);
  drawBulk();
}

function drawBulk() {
  const count = state.chosen.size;
  parts.bulk.hidden = count === 0;
  if (!count) return;
  parts.bulk.replaceChildren(el("b", {}, `${count} selected`),
    button("Assign to me", () => bulk("assigned", (id) => ask("POST", `/conversations/${id}/assign`, { agent_id: "me" }))),
    button("Resolve", () => bulk("resolved", (id) => ask("PATCH", `/conversations/${id}`, { status: "resolved" }))),
    button("Snooze", async () => { const until = await askSnooze(); if (until) bulk("snoozed", (id) => ask("PATCH", `/conversations/${id}`, { status: "pending", wakes_at: until })); }),
    button("Priority", async () => { const found = await prompt("Priority", [field("Priority", select("priority", PRIORITIES.map((word) => [word, word]), "normal"))], "Set"); if (found) bulk("changed", (id) => ask("PATCH", `/conversations/${id}`, { priority: found.priority })); }),
    button("Tag", async () => { const found = await prompt("Add a tag", [field("Tag", el("input", { name: "tag", class: "input", maxlength: "40", required: true }))], "Add"); if (found?.tag) bulk("tagged", (id) => ask("PATCH", `/conversations/${id}`, { tags: [...new Set([...(known.get(id)?.tags ?? []), found.tag.trim()])] })); }),
    button("Clear", () => { state.chosen.clear(); drawList(); }, { class: "btn s ghost" }));
}

async function bulk(word, work) {
  const ids = [...state.chosen], failed = [];
  let at = 0;
  const lane = async () => {
    while (at < ids.length) {
      const id = ids[at];
      at += 1;
      try { const one = await work(id); if (one?.id) changed(one); state.chosen.delete(id); } catch (error) { failed.push(error.message); }
    }
  };
  await Promise.all([lane(), lane(), lane(), lane()]);
  if (failed.length) toast(`${failed.length} of ${ids.length} not ${word}: ${failed[0]}`, true);
  else toast(`${ids.length} ${word}`);
  drawList();
  draw();
}

// ---- a conversation ----------------------------------------------------------------------------------------------

function hash() {
  const wanted = `#${state.view}${state.open ? `/${state.open}` : ""}`;
  if (location.hash !== wanted) history.pushState(null, "", wanted);
}

async function go(id, isBack = false) {
  if (state.open && state.open !== id) { saveDraft(); flushPending(state.open); }
  const left = state.open;
  state.open = id;
  state.files = [];
  state.visitor = null;
  state.earlier = [];
  state.mode = "reply";
  document.body.classList.toggle("has-open", Boolean(id));
  if (!isBack) hash();
  link.send({ t: "view", conversation_id: id });
  if (left && left !== id && known.get(left) && !belongs(known.get(left))) place(known.get(left));
  drawList();
  draw();
  if (!id) return;
  loadDraft();
  try {
    const [one] = await Promise.all([ask("GET", `/conversations/${id}`), fetchMessages(id)]);
    put(one);
    if (state.open !== id) return;
    draw();
    parts.thread.scrollTop = parts.thread.scrollHeight;
    markRead();
    const viewers = await ask("GET", `/conversations/${id}/viewers`).catch(() => null);
    if (viewers) state.viewers.set(id, viewers.items);
    const [visitor, earlier] = await Promise.all([ask("GET", `/visitors/${encodeURIComponent(one.visitor.id)}`), ask("GET", `/visitors/${encodeURIComponent(one.visitor.id)}/conversations`)]);
    if (state.open !== id) return;
    state.visitor = visitor;
    state.earlier = earlier.items.filter((other) => other.id !== id);
    draw();
  } catch (error) {
    trouble(error);
    if (error.status === 404) go(null);
  }
}

async function fetchMessages(id) {
  const list = state.messages.get(id) ?? [];
  let after = list.length ? list.at(-1).seq : null;
  for (;;) {
    const page = await ask("GET", `/conversations/${id}/messages?limit=100${after === null ? "" : `&after_seq=${after}`}`);
    for (const message of page.items) putMessage(list, message);
    state.messages.set(id, list);
    if (after === null) state.hasMore.set(id, page.has_more);
    if (after === null || !page.has_more || !page.items.length) return;
    after = page.items.at(-1).seq;
  }
}

async function fetchEarlier() {
  const id = state.open, list = state.messages.get(id), height = parts.thread.scrollHeight;
  const page = await ask("GET", `/conversations/${id}/messages?limit=100&before_seq=${list[0].seq}`);
  for (const message of page.items) putMessage(list, message);
  state.hasMore.set(id, page.has_more);
  draw();
  parts.thread.scrollTop = parts.thread.scrollHeight - height;
}

const marked = new Map();
function markRead() {
  const one = known.get(state.open), seq = state.messages.get(state.open)?.at(-1)?.seq ?? 0;
  if (!one || document.hidden || seq <= (one.agent_read_seq ?? 0) || seq <= (marked.get(one.id) ?? 0)) return;
  marked.set(one.id, seq);
  ask("POST", `/conversations/${one.id}/read`, { seq }).catch(() => marked.delete(one.id));
}

function changed(one) {
  const now = put(one);
  if (now) place(now);
}

async function change(fields, done) {
  const one = known.get(state.open);
  if (!one) return;
  const found = await attempt(() => ask("PATCH", `/conversations/${one.id}`, fields), done);
  if (found) { changed(found); drawList(); draw(); }
}

// Brings up to date what an open dialog shows of the others' statuses.
let refreshPresences = null;

const actions = {
  async transcript() {
    const one = known.get(state.open);
    if (!one) return;
    const found = await attempt(() => ask("POST", `/conversations/${one.id}/transcript`));
    if (found) toast(`The transcript is on its way to ${found.email}`);
  },
  async mine() {
    const one = known.get(state.open);
    if (!one) return;
    const found = await attempt(() => ask("POST", `/conversations/${one.id}/assign`, { agent_id: "me", expected_assignee: one.assignee?.id ?? null }), "Assigned to you");
    if (found) { changed(found); drawList(); draw(); }
  },
  async transfer() {
    const one = known.get(state.open);
    if (!one) return;
    const targets = () => [...state.agents.filter((agent) => !agent.disabled && agent.id !== one.assignee?.id).map((agent) => [`a ${agent.id}`, `${agent.name} (${state.presences.get(agent.id) ?? "offline"})`]), ...state.teams.map((team) => [`t ${team.id}`, `Team ${team.name}`])];
    const to = select("to", targets());
    if (!to.options.length) return toast("There is no one else to transfer to.", true);
    // Colleagues come and go while the dialog is open.
    refreshPresences = () => {
      const words = new Map(targets());
      for (const option of to.options) option.textContent = words.get(option.value) ?? option.textContent;
    };
    const found = await prompt("Transfer", [field("To", to), field("Note", el("textarea", { name: "note", class: "input", rows: "3", maxlength: "4000" }), "Agents only; the visitor does not see it.")], "Transfer");
    refreshPresences = null;
    if (!found) return;
    const [kind, id] = found.to.split(" ");
    const done = await attempt(() => ask("POST", `/conversations/${one.id}/transfer`, { [kind === "a" ? "agent_id" : "team_id"]: id, note: found.note.trim() || undefined }), "Transferred");
    if (done) { changed(done); drawList(); draw(); }
  },
  // Another conversation of the same visitor goes on with this one's messages.
  async merge() {
    const one = known.get(state.open);
    if (!one) return;
    if (one.merged_into) return go(one.merged_into);
    const others = (await attempt(() => ask("GET", `/visitors/${encodeURIComponent(one.visitor.id)}/conversations?limit=50`)))?.items ?? [];
    const targets = others.filter((other) => other.id !== one.id && other.status !== "resolved").map((other) => [other.id, `${full(other.last_message_at)} · ${other.last_message?.preview || other.id}`]);
    if (!targets.length) return toast("This visitor has no other open conversation.", true);
    const found = await prompt("Merge", [field("Into", select("into", targets), "The messages of this conversation are copied to the end of that one, and this one is resolved. It cannot be undone.")], "Merge");
    if (!found) return;
    flushPending(one.id);
    const done = await attempt(() => ask("POST", `/conversations/${one.id}/merge`, { into: found.into }), "Merged");
    if (done) { changed(done); state.messages.delete(done.id); go(done.id); }
  },
  async snooze() {
    if (!state.open) return;
    const until = await askSnooze();
    if (until) change({ status: "pending", wakes_at: until }, "Snoozed");
  },
  resolve() {
    const one = known.get(state.open);
    if (!one) return;
    flushPending(one.id);
    if (one.status === "resolved") change({ status: "open" }, "Reopened");
    else change({ status: "resolved" }, "Resolved");
  },
  wake: () => change({ status: "open" }, "Open again"),
  audit() {
    const one = known.get(state.open);
    if (one && state.me.role === "supervisor") showAudit(one);
  },
  async priority() {
    const one = known.get(state.open);
    if (!one) return;
    const found = await prompt("Priority", [field("Priority", select("priority", PRIORITIES.map((word) => [word, word]), one.priority))], "Set");
    if (found) change({ priority: found.priority });
  },
  async tags() {
    const one = known.get(state.open);
    if (!one) return;
    const found = await prompt("Tags", [field("Tags", el("input", { name: "tags", class: "input", value: one.tags.join(", "), maxlength: "400" }), "Separated by commas.")], "Save");
    if (found) change({ tags: [...new Set(found.tags.split(",").map((tag) => tag.trim()).filter(Boolean))] });
  },
  async next() {
    const one = await attempt(() => ask("POST", "/waiting/next"));
    if (!one) return toast("Nobody is waiting.");
    changed(one);
    go(one.id);
  },
  details() {
    state.hasDetails = !state.hasDetails;
    document.body.classList.toggle("has-details", state.hasDetails);
    setting.put("details", state.hasDetails);
    draw();
  },
  async block() {
    const one = known.get(state.open);
    if (!one) return;
    const path = `/visitors/${encodeURIComponent(one.visitor.id)}/block`;
    if (state.visitor?.blocked) {
      if ((await attempt(() => ask("DELETE", path).then(() => true), "Unblocked")) && state.visitor) state.visitor.blocked = false;
    } else {
      const found = await prompt(`Block ${nameOf(one)}`, [field("Reason", el("input", { name: "reason", class: "input", maxlength: "200" }))], "Block", "The visitor is cut off at once and cannot write again.");
      if (!found) return;
      if ((await attempt(() => ask("POST", path, { reason: found.reason || undefined }).then(() => true), "Blocked")) && state.visitor) state.visitor.blocked = true;
    }
    draw();
  },
};

// The lines of the audit trail about a conversation.
async function showAudit(one) {
  const list = el("ul", { class: "earlier" }), more = button("Earlier ones", () => load(), { hidden: true }), none = el("p", { class: "dim", hidden: true }, "Nobody of the staff has changed it.");
  let cursor = null;
  const load = async () => {
    const page = await attempt(() => ask("GET", `/conversations/${one.id}/audit?limit=50${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`));
    if (!page) return false;
    for (const line of page.items) {
      const set = Object.entries(line.after ?? {}).map(([key, value]) => `${key} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
      list.append(el("li", {}, el("span", {}, el("b", {}, line.who), ` ${line.action}${line.outcome === "ok" ? "" : ` (${line.outcome})`}`), el("span", { class: "dim small" }, [full(line.created_at), set].filter(Boolean).join(" · "))));
    }
    cursor = page.next_cursor;
    more.hidden = !cursor;
    none.hidden = list.children.length > 0 || Boolean(cursor);
    return true;
  };
  if (!(await load())) return;
  const box = el("dialog", { class: "sheet", "aria-label": "Audit" }, el("div", { class: "dialog-body" }, el("h2", {}, "Audit"), el("p", { class: "dim" }, "Changes by agents, operators and bots, newest first. Messages are not among them."), none, list, more,
    el("div", { class: "dialog-foot" }, el("button", { type: "button", class: "btn", onclick: () => box.close() }, "Close"))));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

const inHours = (hours) => new Date(Date.now() + hours * 3_600_000);
const onDay = (days, hour) => { const date = new Date(); date.setDate(date.getDate() + days); date.setHours(hour, 0, 0, 0); return date; };

// Asks for a time to come, besides other fields; resolves with the fields and `until`, or with nothing.
async function askUntil(title, verb, lead, choices, more = []) {
  const found = await prompt(title, [...more, field("Until", select("when", [...choices.map(([key, word]) => [key, word]), ["other", "Another time"]])), field("Another time", el("input", { type: "datetime-local", name: "other", class: "input" }))], verb, lead);
  if (!found) return null;
  const when = found.when === "other" ? new Date(found.other) : choices.find(([key]) => key === found.when)[2];
  if (Number.isNaN(when.getTime()) || when <= new Date()) { toast("Choose a time in the future.", true); return null; }
  return { ...found, until: when.toISOString() };
}

async function askSnooze() {
  const toMonday = ((8 - new Date().getDay()) % 7) || 7;
  const choices = [["1h", "1 hour", inHours(1)], ["4h", "4 hours", inHours(4)], ["tomorrow", "Tomorrow 9:00", onDay(1, 9)], ["monday", "Monday 9:00", onDay(toMonday, 9)]];
  const found = await askUntil("Snooze", "Snooze", "It comes back by itself, and at once when the visitor writes.", choices);
  return found?.until ?? null;
}

// ---- writing -----------------------------------------------------------------------------------------------------

const draftKey = () => `${state.open} ${state.mode}`;
function saveDraft() {
  if (!state.open) return;
  state.drafts.set(draftKey(), parts.input.value);
  const kept = Object.fromEntries([...state.drafts].filter(([, text]) => text).slice(-50));
  setting.put("drafts", kept);
}
function loadDraft() {
  parts.input.value = state.drafts.get(draftKey()) ?? "";
  grow();
}
function grow() {
  parts.input.style.height = "auto";
  // Hidden, it has no height to measure.
  if (parts.input.scrollHeight) parts.input.style.height = `${Math.min(parts.input.scrollHeight + 2, 220)}px`;
}
function setMode(mode) {
  saveDraft();
  state.mode = mode;
  loadDraft();
  draw();
  parts.input.focus();
}

// Goes out after 5 s; until then it can be taken back. Another conversation, closing the page: at once.
function submit() {
  const content = parts.input.value.trim(), id = state.open, files = state.files.filter((file) => file.id);
  if ((!content && !files.length) || !id || state.files.some((file) => !file.id)) return;
  const item = { id, client_id: newId(), content, files, type: state.mode === "note" ? "note" : "text", at: new Date().toISOString(), due: Date.now() + UNDO_MS };
  parts.input.value = "";
  state.files = [];
  saveDraft();
  grow();
  closeSuggest();
  link.send({ t: "typing", conversation_id: id, on: false, note: item.type === "note" });
  item.timer = setTimeout(() => deliver(item), UNDO_MS);
  state.pending.push(item);
  draw();
  parts.thread.scrollTop = parts.thread.scrollHeight;
}

function undo() {
  const item = state.pending.findLast((one) => !one.isSent && one.id === state.open);
  if (!item) return;
  clearTimeout(item.timer);
  state.pending = state.pending.filter((one) => one !== item);
  const mode = item.type === "note" ? "note" : "reply";
  if (state.mode !== mode) { state.mode = mode; }
  parts.input.value = [item.content, parts.input.value].filter(Boolean).join("\n");
  state.files = [...item.files, ...state.files];
  saveDraft();
  grow();
  draw();
  parts.input.focus();
}

async function deliver(item, isLast = false) {
  if (item.isSent) return;
  item.isSent = true;
  item.failed = null;
  clearTimeout(item.timer);
  draw();
  try {
    const sent = await ask("POST", `/conversations/${item.id}/messages`, { content: item.content, type: item.type, client_id: item.client_id, attachments: item.files.map((file) => file.id) }, { keepalive: isLast });
    state.pending = state.pending.filter((one) => one !== item);
    if (state.messages.has(item.id)) putMessage(state.messages.get(item.id), sent.message);
    changed(sent.conversation);
  } catch (error) {
    item.isSent = false;
    if (error.isPassing) item.timer = setTimeout(() => deliver(item), Math.max(2000, (error.retryAfter ?? 0) * 1000));
    else { item.failed = error.message; trouble(error); }
  }
  drawList();
  draw();
}

function flushPending(id, isLast = false) {
  for (const item of state.pending) if ((!id || item.id === id) && !item.failed) deliver(item, isLast);
}
addEventListener("pagehide", () => { saveDraft(); flushPending(null, true); });

async function attach(list) {
  for (const file of list) {
    const item = { name: file.name || "image.png", size: file.size, id: null };
    state.files.push(item);
    draw();
    try {
      Object.assign(item, await ask("POST", `/conversations/files?name=${encodeURIComponent(item.name)}`, file, { raw: true, headers: { "content-type": "application/octet-stream" } }));
    } catch (error) {
      state.files = state.files.filter((other) => other !== item);
      trouble(error);
    }
    draw();
  }
}

// Canned responses by `/` at the start of a line, agents by `@` in notes.
let suggest = null;
function offer() {
  const before = parts.input.value.slice(0, parts.input.selectionStart);
  const canned = before.match(/(?:^|\n)\/([\w-]*)$/), mention = state.mode === "note" ? before.match(/(?:^|\s)@([\p{L}\w.-]*)$/u) : null;
  let items = [];
  if (canned) items = state.canned.filter((one) => one.short_code.toLowerCase().startsWith(canned[1].toLowerCase())).map((one) => ({ label: `/${one.short_code}`, more: one.content, text: fill(one.content), from: before.length - canned[1].length - 1 }));
  else if (mention) items = state.agents.filter((one) => !one.disabled && one.name.toLowerCase().startsWith(mention[1].toLowerCase())).map((one) => ({ label: `@${one.name}`, more: one.email, text: `@${one.name} `, from: before.length - mention[1].length - 1 }));
  if (!items.length) return closeSuggest();
  suggest = { items: items.slice(0, 8), at: 0 };
  drawSuggest();
}
function drawSuggest() {
  parts.suggest.hidden = !suggest;
  if (!suggest) { parts.input.removeAttribute("aria-activedescendant"); return parts.suggest.replaceChildren(); }
  parts.suggest.replaceChildren(...suggest.items.map((item, n) => el("li", { role: "option", id: `suggest-${n}`, "aria-selected": String(n === suggest.at), onmousedown: (event) => { event.preventDefault(); suggest.at = n; accept(); } }, el("b", {}, item.label), el("span", { class: "clip-line" }, item.more))));
  parts.input.setAttribute("aria-activedescendant", `suggest-${suggest.at}`);
}
function closeSuggest() { suggest = null; drawSuggest(); }
function accept() {
  const item = suggest.items[suggest.at];
  parts.input.setRangeText(item.text, item.from, parts.input.selectionStart, "end");
  closeSuggest();
  saveDraft();
  grow();
}
// Placeholders of canned responses: {{visitor.name}}, {{visitor.email}}, {{agent.name}}; a word after a bar stands
// in for what is unknown: {{visitor.name|there}}.
function fill(text) {
  const one = known.get(state.open);
  const values = { "visitor.name": one?.visitor?.name, "visitor.email": one?.visitor?.email, "agent.name": state.me.name };
  return text.replace(/\{\{\s*(visitor\.name|visitor\.email|agent\.name)\s*(?:\|([^{}]*))?\}\}/g, (_, key, otherwise) => values[key] || otherwise || "");
}

let typedAt = 0;
function typing() {
  if (Date.now() - typedAt < 3000 || !state.open || !parts.input.value) return;
  typedAt = Date.now();
  link.send({ t: "typing", conversation_id: state.open, on: true, note: state.mode === "note" });
}

// ---- drawing the conversation --------------------------------------------------------------------------------------

function attachment(file) {
  const url = new URL(file.url ?? "", location.href);
  if (!file.url || url.origin !== location.origin) return null;
  return file.is_image
    ? el("a", { class: "picture", href: url.href, target: "_blank", rel: "noopener", "aria-label": `Image: ${file.name}` }, el("img", { src: url.href, alt: "", loading: "lazy" }))
    : el("a", { class: "file", href: url.href, download: file.name }, icon(ICONS.file), el("span", {}, el("b", {}, file.name), el("small", {}, bytes(file.size))));
}

const drawn = new Map();
function keyed(key, shape, make) {
  const found = drawn.get(key);
  if (found?.shape === shape) return found.node;
  const node = make();
  drawn.set(key, { shape, node });
  return node;
}

const EVENTS = { requeued: "Returned to the queue" };
function threadNodes(one) {
  const list = state.messages.get(one.id) ?? [], nodes = [];
  if (state.hasMore.get(one.id)) nodes.push(keyed("more", one.id, () => el("li", { class: "event" }, el("button", { type: "button", class: "btn s ghost", onclick: () => attempt(fetchEarlier) }, "Show earlier messages"))));
  let last = "";
  for (const message of list) {
    const day = new Date(message.created_at).toDateString();
    if (day !== last) nodes.push(keyed(`day ${day}`, "", () => el("li", { class: "event" }, new Date(message.created_at).toLocaleDateString([], { dateStyle: "full" }))));
    last = day;
    if (message.type === "event") {
      nodes.push(keyed(message.id, "", () => el("li", { class: "event" }, `${EVENTS[message.content] ?? message.content} · ${clock(message.created_at)}`)));
      continue;
    }
    const isOurs = message.sender_role !== "user", isNote = message.type === "note";
    const mayChange = message.sender?.id === state.me.id && !message.deleted && Date.now() - Date.parse(message.created_at) < 300_000;
    const isRead = isOurs && !isNote && one.visitor_read_seq >= message.seq;
    nodes.push(keyed(message.id, `${message.edited_at} ${message.deleted} ${isRead} ${mayChange}`, () => el("li", { class: `msg ${isNote ? "note" : isOurs ? "ours" : "theirs"}` },
      el("div", { class: "meta" }, el("b", {}, message.sender?.name ?? (isOurs ? message.sender_role : nameOf(one))), isNote ? badge("note", "warn") : null, message.sender_role === "bot" ? badge("bot") : null, el("time", { datetime: message.created_at, title: full(message.created_at) }, clock(message.created_at)), message.edited_at && !message.deleted ? "edited" : null, isRead ? el("span", {}, "read") : null,
        mayChange ? el("span", { class: "tools" }, el("button", { type: "button", class: "link", onclick: () => edit(message) }, "Edit"), el("button", { type: "button", class: "link", onclick: () => attempt(() => ask("DELETE", `/conversations/${one.id}/messages/${message.id}`), "Deleted") }, "Delete")) : null),
      message.deleted ? el("div", { class: "bubble gone" }, "Message deleted") : [message.content ? el("div", { class: "bubble" }, render(message.content)) : null, message.attachments.map(attachment)])));
  }
  for (const item of state.pending.filter((other) => other.id === one.id && !list.some((message) => message.client_id === other.client_id))) {
    const left = Math.max(0, Math.ceil((item.due - Date.now()) / 1000));
    nodes.push(keyed(item.client_id, `${item.isSent} ${item.failed} ${left}`, () => el("li", { class: `msg ${item.type === "note" ? "note" : "ours"} pending` },
      el("div", { class: "meta" }, item.failed ? el("span", { class: "failed" }, `Not sent: ${item.failed}`) : item.isSent ? "Sending…" : `Sending in ${left} s`,
        item.failed ? el("button", { type: "button", class: "link", onclick: () => deliver(item) }, "Try again") : null,
        item.isSent ? null : el("button", { type: "button", class: "link", onclick: undo }, "Undo")),
      item.content ? el("div", { class: "bubble" }, render(item.content)) : null, item.files.map(attachment))));
  }
  if (one.rating) nodes.push(keyed("rating", `${one.rating} ${one.rating_comment}`, () => el("li", { class: "event" }, `Rated ${one.rating} of 5${one.rating_comment ? `: ${one.rating_comment}` : ""}`)));
  return nodes;
}

async function edit(message) {
  const found = await prompt("Edit message", [field("Text", el("textarea", { name: "content", class: "input", rows: "5", maxlength: "4000" }, message.content))], "Save");
  if (found?.content.trim()) attempt(() => ask("PATCH", `/conversations/${message.conversation_id}/messages/${message.id}`, { content: found.content.trim() }), "Changed");
}

let shownId = null, headShape = "", sideShape = "";
function draw() {
  const one = known.get(state.open);
  parts.stage.hidden = !one;
  parts.blank.hidden = Boolean(one);
  if (!one) { shownId = null; sideShape = headShape = ""; parts.side.replaceChildren(); return; }
  if (shownId !== one.id) { drawn.clear(); parts.list.replaceChildren(); headShape = sideShape = ""; }
  drawHead(one);
  const atEnd = shownId !== one.id || parts.thread.scrollHeight - parts.thread.scrollTop - parts.thread.clientHeight < 90;
  const nodes = threadNodes(one), wanted = new Set(nodes);
  for (const node of [...parts.list.children]) if (!wanted.has(node)) node.remove();
  nodes.forEach((node, n) => { if (parts.list.children[n] !== node) parts.list.insertBefore(node, parts.list.children[n] ?? null); });
  if (atEnd) parts.thread.scrollTop = parts.thread.scrollHeight;
  if (shownId !== one.id) grow();
  shownId = one.id;
  const typist = state.typing.get(one.id);
  parts.typing.textContent = typist ? `${typist.name ?? nameOf(one)} is typing…` : "";
  const others = (state.viewers.get(one.id) ?? []).filter((agent) => agent.id !== state.me.id).map((agent) => agent.name);
  parts.watching.textContent = others.length ? `${others.join(", ")} ${others.length === 1 ? "is" : "are"} looking at this too` : "";
  parts.reply.setAttribute("aria-pressed", String(state.mode === "reply"));
  parts.note.setAttribute("aria-pressed", String(state.mode === "note"));
  parts.composer.dataset.mode = state.mode;
  parts.input.placeholder = state.mode === "note" ? "Note for agents; @ mentions somebody" : "Reply; / for canned responses";
  parts.input.setAttribute("aria-label", state.mode === "note" ? "Note" : "Reply");
  parts.files.hidden = !state.files.length;
  parts.files.replaceChildren(...state.files.map((file) => el("li", {}, el("span", { class: "clip-line" }, file.name), el("small", {}, file.id ? bytes(file.size) : "uploading"), el("button", { type: "button", class: "link", "aria-label": `Remove ${file.name}`, onclick: () => { state.files = state.files.filter((other) => other !== file); draw(); } }, "×"))));
  if (document.body.classList.contains("has-details")) drawSide(one);
}

function drawHead(one) {
  const shape = JSON.stringify([one.version, one.visitor?.name, state.hasDetails, state.me.id]);
  if (shape === headShape) return;
  headShape = shape;
  const mine = one.assignee?.id === state.me.id;
  parts.head.replaceChildren(
    el("button", { type: "button", class: "btn ghost s only-phone", "aria-label": "Back to the list", onclick: () => go(null) }, icon(ICONS.back)),
    face(nameOf(one)), el("div", { class: "who" }, el("h1", { class: "clip-line" }, nameOf(one)),
      el("div", { class: "chips" }, badge(one.status === "pending" ? "snoozed" : one.status, { open: "good", pending: "accent" }[one.status] ?? ""), one.visitor.verified ? badge("verified", "good") : null, one.priority !== "normal" ? badge(one.priority, { urgent: "bad", high: "warn" }[one.priority] ?? "") : null, one.tags.map((tag) => badge(tag, "mono")),
        el("span", { class: "dim small" }, one.assignee ? (mine ? "assigned to you" : `assigned to ${one.assignee.name}`) : "unassigned"))),
    el("div", { class: "actions" },
      mine ? null : button("Assign to me", actions.mine, { title: "Assign to me (A)" }),
      button("Transfer", actions.transfer, { icon: "move", title: "Transfer (T)" }),
      one.status === "pending" ? button("Wake", actions.wake, { icon: "clock" }) : one.status === "open" ? tool("Snooze", "clock", actions.snooze, { title: "Snooze (S)" }) : null,
      one.merged_into ? button("Go to the merged conversation", actions.merge, { title: "Merged conversation (G)" }) : tool("Merge", "merge", actions.merge, { title: "Merge (G)" }),
      tool("Priority", "flag", actions.priority, { title: "Priority (P)" }), tool("Tags", "tag", actions.tags, { title: "Tags (L)" }),
      tool("Visitor", "person", actions.details, { "aria-pressed": String(state.hasDetails), title: "Visitor details (D)" }),
      one.merged_into ? null : button(one.status === "resolved" ? "Reopen" : "Resolve", actions.resolve, { icon: "check", class: "btn s primary", title: "Resolve or reopen (E)" })));
}

function drawSide(one) {
  const visitor = state.visitor;
  const shape = JSON.stringify([one.id, visitor, state.earlier.map((other) => other.version)]);
  if (shape === sideShape || parts.side.contains(document.activeElement)) return;
  sideShape = shape;
  const page = one.visitor.page_url ?? visitor?.page_url, href = page ? safeLink(page) : null;
  const facts = [["E-mail", one.visitor.email ?? "unknown"], ["Identity", one.visitor.verified ? "verified by the site" : "not verified"], ["Page", href ? el("a", { href, target: "_blank", rel: "noopener noreferrer" }, page) : "unknown"], ["Language", one.visitor.locale ?? "unknown"], ["First seen", visitor ? full(visitor.created_at) : ""], ["Last seen", visitor ? full(visitor.seen_at) : ""], ...Object.entries(visitor?.attributes ?? {}).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)])];
  const save = async (fields) => { const found = await attempt(() => ask("PATCH", `/visitors/${encodeURIComponent(one.visitor.id)}`, fields), "Saved"); if (found) { state.visitor = { ...state.visitor, ...found }; } };
  parts.side.replaceChildren(
    el("div", { class: "side-head" }, el("h2", {}, "Visitor"), el("button", { type: "button", class: "btn ghost s", "aria-label": "Close visitor details", onclick: actions.details }, icon(ICONS.close))),
    el("dl", { class: "facts" }, facts.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, value)])),
    field("Name", el("input", { class: "input", value: visitor?.name ?? "", maxlength: "200", onchange: (event) => save({ name: event.target.value.trim() }) })),
    field("Notes", el("textarea", { class: "input", rows: "4", maxlength: "4000", onchange: (event) => save({ notes: event.target.value }) }, visitor?.notes ?? ""), "Agents only."),
    el("h3", {}, "Earlier conversations"),
    state.earlier.length ? el("ul", { class: "earlier" }, state.earlier.slice(0, 20).map((other) => el("li", {}, el("button", { type: "button", class: "link", onclick: () => { put(other); go(other.id); } }, `${full(other.last_message_at)} · ${other.status}`), el("span", { class: "clip-line dim small" }, other.last_message?.preview ?? "")))) : el("p", { class: "dim small" }, "None."),
    ...(state.me.role === "supervisor" ? [button("Audit", actions.audit, { icon: "clock", title: "Audit of the conversation (H)" })] : []),
    ...(one.visitor.email ? [button("E-mail transcript", actions.transcript, { icon: "file", title: "E-mail the transcript (I)" })] : []),
    button(visitor?.blocked ? "Unblock" : "Block", actions.block, { icon: "ban", class: "btn s danger", title: "Block (B)" }));
}

// ---- live ------------------------------------------------------------------------------------------------------------

const link = new Link("/api/v1/ws", "console/1", {
  ticket: async () => (await ask("POST", "/ws-ticket")).ticket,
  sync: () => attempt(syncAll),
  ended: () => location.assign("/desk/login"),
  state(word, frame) {
    state.isOff = word === "off";
    document.body.dataset.liveState = word;
    parts.offline.hidden = !state.isOff;
    if (word !== "on") return;
    if (frame?.me?.presence) showPresence(frame.me.presence);
    if (state.open) link.send({ t: "view", conversation_id: state.open });
    tellFocus();
  },
  event(type, data) {
    const id = data.conversation_id ?? data.conversation?.id;
    if (data.conversation) { const one = put(data.conversation); if (one) place(one); }
    switch (type) {
      case "message.created": {
        const { message } = data;
        if (state.messages.has(id)) putMessage(state.messages.get(id), message);
        state.pending = state.pending.filter((item) => item.client_id !== message.client_id);
        if (message.sender_role === "user") {
          state.typing.delete(id);
          notify(known.get(id), message);
          if (id === state.open) parts.announcer.textContent = `${nameOf(known.get(id))}: ${message.content}`;
        }
        if (id === state.open) markRead();
        break;
      }
      case "message.updated": case "message.deleted":
        if (state.messages.has(id)) putMessage(state.messages.get(id), data.message);
        break;
      case "typing":
        if (data.sender?.id === state.me.id) break;
        if (data.on) state.typing.set(id, { name: data.sender_role === "user" ? null : data.sender?.name, until: Date.now() + 6000 });
        else state.typing.delete(id);
        break;
      case "viewers.updated": state.viewers.set(id, data.viewers); break;
      case "presence.updated":
        state.presences.set(data.agent_id, data.status);
        refreshPresences?.();
        if (data.agent_id === state.me.id) showPresence(data);
        break;
      case "roster.updated": attempt(loadPeople); break;
      case "canned.updated": attempt(loadCanned); break;
      case "conversation.assigned":
        if (data.conversation?.assignee?.id === state.me.id && data.previous_assignee !== state.me.id) notify(known.get(id), null);
        break;
    }
    drawSoon();
  },
});

// While a tab is in the foreground, nothing is pushed to this agent's browsers.
function tellFocus() {
  link.send({ t: "focus", on: !document.hidden });
}

let drawFrame = 0;
function drawSoon() {
  if (drawFrame) return;
  drawFrame = requestAnimationFrame(() => { drawFrame = 0; drawList(); draw(); });
}

function notify(one, message) {
  if (!one || one.bot || (one.assignee && one.assignee.id !== state.me.id)) return;
  const isSeen = !document.hidden && document.hasFocus() && state.open === one.id;
  if (isSeen) return;
  if (setting.get("sound", true)) chime();
  // With push the service worker tells, also when no tab is open.
  if (document.hidden && !state.hasPush && typeof Notification === "function" && Notification.permission === "granted") {
    const note = new Notification(nameOf(one), { body: message?.content ?? "A conversation is assigned to you.", tag: one.id, icon: app.dataset.icon });
    note.addEventListener("click", () => { window.focus(); go(one.id); note.close(); });
  }
}

async function syncAll() {
  await Promise.all([loadList(), loadPeople()]);
  for (const id of [...state.messages.keys()]) {
    if (id === state.open) await fetchMessages(id);
    else state.messages.delete(id);
  }
  if (state.open) put(await ask("GET", `/conversations/${state.open}`));
  draw();
  markRead();
}

async function loadPeople() {
  const [agents, teams, presence] = await Promise.all([ask("GET", "/agents"), ask("GET", "/teams"), ask("GET", "/presence"), loadCanned()]);
  state.agents = agents.items;
  state.teams = teams.items;
  for (const one of presence.items) state.presences.set(one.agent.id, one.status);
  refreshPresences?.();
}

async function loadCanned() {
  state.canned = (await ask("GET", "/canned")).items;
  // What was typed already may be the start of a new one.
  if (document.activeElement === parts.input) offer();
}

function showPresence(presence) {
  if (!presence) return;
  state.presence = presence;
  const word = presence.chosen && presence.chosen !== "offline" ? presence.chosen : presence.status;
  for (const option of parts.presence.options) {
    const end = option.value === word ? presence.ends_at : null;
    option.textContent = end ? `${STATUSES[option.value]} until ${new Date(end).toDateString() === new Date().toDateString() ? clock(end) : full(end)}` : STATUSES[option.value];
  }
  if (["online", "away", "busy"].includes(word)) parts.presence.value = word;
  parts.presence.dataset.status = presence.status;
}

async function choosePresence(status, until) {
  const found = await attempt(() => ask("PUT", "/presence/me", { status, until }));
  showPresence(found ?? state.presence);
}

async function choosePresenceUntil() {
  const choices = [["30m", "30 minutes", inHours(0.5)], ["1h", "1 hour", inHours(1)], ["4h", "4 hours", inHours(4)], ["tomorrow", "Tomorrow 9:00", onDay(1, 9)]];
  const status = field("Status", select("status", [["busy", "Busy"], ["away", "Away"]]));
  const found = await askUntil("Busy or away for a while", "Set", "You keep your conversations, get no new ones, and are online again by yourself.", choices, [status]);
  if (found) choosePresence(found.status, found.until);
  else showPresence(state.presence);
}

// ---- keyboard ----------------------------------------------------------------------------------------------------------

function step(by) {
  const at = state.items.findIndex((one) => one.id === state.open), to = Math.min(state.items.length - 1, Math.max(0, at < 0 ? 0 : at + by));
  if (!state.items[to]) return;
  go(state.items[to].id);
  parts.rows.reveal(to);
}

const KEYS = [
  ["J", "Next conversation", () => step(1)], ["K", "Previous conversation", () => step(-1)], ["R", "Reply", () => state.open && setMode("reply")], ["N", "Note", () => state.open && setMode("note")],
  ["A", "Assign to me", actions.mine], ["T", "Transfer", actions.transfer], ["G", "Merge into another conversation", actions.merge], ["S", "Snooze", actions.snooze], ["E", "Resolve or reopen", actions.resolve], ["P", "Priority", actions.priority], ["L", "Tags", actions.tags],
  ["D", "Visitor details", actions.details], ["H", "Audit of the conversation, for supervisors", actions.audit], ["B", "Block or unblock the visitor", actions.block], ["I", "E-mail the transcript to the visitor", actions.transcript], ["W", "Take the next one waiting", actions.next], ["Z", "Undo send", undo], ["U", "Attach a file", () => state.open && parts.pick.click()],
  ["X", "Select this conversation", () => state.open && choose(state.open, !state.chosen.has(state.open))], ["C", "Clear the selection", () => { state.chosen.clear(); drawList(); }], ["/", "Search", () => parts.search.focus()],
  ["O", "I am online", () => choosePresence("online")], ["Q", "I am busy", () => choosePresence("busy")], ["Y", "I am away", () => choosePresence("away")], ["F", "I am busy or away for a while", () => choosePresenceUntil()], ["M", "My account", () => account()], ["V", "Reports and settings, for supervisors", () => state.me.role === "supervisor" && location.assign("/desk/manage")],
  ["?", "This sheet", () => sheet()],
  ...VIEWS.map(([view, word], n) => [String(n + 1), `View: ${word}`, () => showView(view)]),
];
const FIXED = [["Enter", "Send"], ["Shift+Enter", "New line"], ["Esc", "Leave the field, close the conversation"], ["/ in a reply", "Canned response"], ["@ in a note", "Mention somebody"]];

function sheet() {
  const box = el("dialog", { class: "sheet", "aria-label": "Keyboard shortcuts" }, el("div", { class: "dialog-body" }, el("h2", {}, "Keyboard shortcuts"),
    el("dl", { class: "keys", tabindex: "0" }, [...KEYS, ...FIXED].map(([key, word]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, word)))),
    el("div", { class: "dialog-foot" }, el("button", { type: "button", class: "btn", onclick: () => box.close() }, "Close"))));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isField = event.target.closest?.("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape") {
    if (suggest) return closeSuggest();
    if (isField) return event.target.blur();
    return state.open && go(null);
  }
  if (isField) return;
  const found = KEYS.find(([key]) => key === event.key.toUpperCase());
  if (!found) return;
  event.preventDefault();
  found[2]();
});

let activeAt = 0;
for (const type of ["keydown", "pointerdown"]) {
  document.addEventListener(type, () => {
    if (Date.now() - activeAt > 30_000 && link.send({ t: "active" })) activeAt = Date.now();
  }, { passive: true });
}

// ---- notifications while no tab is open -----------------------------------------------------------------------------

const canPush = "serviceWorker" in navigator && "PushManager" in window && typeof Notification === "function";
const toBytes = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
const isKey = (made, key) => made && String(new Uint8Array(made.options.applicationServerKey ?? [])) === String(key);

async function switchPush(on) {
  if (!on) {
    const made = await (await navigator.serviceWorker.getRegistration("/desk"))?.pushManager.getSubscription();
    if (made) {
      await ask("POST", "/agents/me/push/remove", { endpoint: made.endpoint });
      await made.unsubscribe();
    }
    return false;
  }
  if ((await Notification.requestPermission()) !== "granted") throw new Error("The browser does not allow notifications for this page.");
  const key = toBytes((await ask("GET", "/agents/me/push")).public_key);
  const worker = await navigator.serviceWorker.register("/desk/worker.js", { scope: "/desk" });
  await navigator.serviceWorker.ready;
  let made = await worker.pushManager.getSubscription();
  if (made && !isKey(made, key)) { await made.unsubscribe(); made = null; }
  made ??= await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  await ask("POST", "/agents/me/push", made.toJSON());
  return true;
}

// The server forgets a browser with the session; a new login brings it back.
async function renewPush() {
  if (!canPush || !setting.get("push", false) || Notification.permission !== "granted") return;
  state.hasPush = await switchPush(true).catch(() => false);
}

// ---- the account -------------------------------------------------------------------------------------------------------

async function account() {
  const sessions = (await attempt(() => ask("GET", "/agents/me/sessions")))?.items ?? [];
  const box = el("dialog", { class: "sheet", "aria-label": "My account" });
  const again = () => { box.close(); account(); };
  const check = (label, key, otherwise) => el("label", { class: "check" }, el("input", { type: "checkbox", checked: setting.get(key, otherwise), onchange: (event) => setting.put(key, event.target.checked) }), ` ${label}`);
  box.append(el("div", { class: "dialog-body" }, el("h2", {}, state.me.name), el("p", {}, `${state.me.email} · ${state.me.role}`),
    check("Sound for new messages", "sound", true),
    canPush ? el("label", { class: "check" }, el("input", { type: "checkbox", checked: state.hasPush, onchange: async (event) => {
      const on = event.target.checked;
      try { state.hasPush = await switchPush(on); toast(state.hasPush ? "This browser gets notifications, also while the desk is closed" : "This browser no longer gets notifications"); } catch (error) { toast(error.message, true); }
      event.target.checked = state.hasPush;
      setting.put("push", state.hasPush);
    } }), " Notify me while the desk is closed") : null,
    typeof Notification === "function" && Notification.permission === "default" ? button("Allow notifications", () => Notification.requestPermission().then(again)) : null,
    el("div", { class: "actions" },
      button("Change password", async () => { box.close(); const found = await prompt("Change password", [field("Current password", el("input", { type: "password", name: "current", class: "input", autocomplete: "current-password", required: true })), field("New password", el("input", { type: "password", name: "password", class: "input", autocomplete: "new-password", minlength: "12", required: true }), "12 characters at least.")], "Change"); if (found) attempt(() => ask("POST", "/agents/me/password", found), "Password changed"); }),
      state.me.has_totp
        ? button("Switch the second factor off", async () => { box.close(); const found = await prompt("Second factor off", [field("Password", el("input", { type: "password", name: "password", class: "input", autocomplete: "current-password", required: true }))], "Switch off"); if (found && (await attempt(() => ask("POST", "/agents/me/totp/remove", found).then(() => true), "Second factor is off"))) state.me.has_totp = false; })
        : button("Set up a second factor", async () => { box.close(); setUpTotp(); })),
    el("h3", {}, "Where you are logged in"),
    el("ul", { class: "sessions" }, sessions.map((one) => el("li", {}, el("span", {}, `${one.ip_address || one.device_id} · last seen ${full(one.seen_at)}`), one.is_current ? badge("this one", "accent") : button("End", async () => { if (await attempt(() => ask("DELETE", `/agents/me/sessions/${encodeURIComponent(one.id)}`).then(() => true), "Ended")) again(); })))),
    el("div", { class: "dialog-foot" }, button("Log out", async () => { await attempt(() => ask("POST", "/agents/logout")); location.assign("/desk/login"); }, { icon: "logout", class: "btn" }), el("button", { type: "button", class: "btn", onclick: () => box.close() }, "Close"))));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

async function setUpTotp() {
  const made = await attempt(() => ask("POST", "/agents/me/totp"));
  if (!made) return;
  const found = await prompt("Second factor", [el("p", {}, "Add this key to your authenticator app, then type the code it shows."), el("p", {}, el("a", { href: made.url }, "Open in an app on this device")), el("pre", { class: "code", tabindex: "0" }, made.secret.replace(/(.{4})/g, "$1 ").trim()), field("Code", el("input", { name: "code", class: "input", inputmode: "numeric", autocomplete: "one-time-code", pattern: "[0-9 ]{6,7}", required: true }))], "Switch on");
  if (!found) return;
  const done = await attempt(() => ask("POST", "/agents/me/totp/confirm", { code: found.code.replaceAll(" ", "") }), "Second factor is on");
  if (!done) return;
  state.me.has_totp = true;
  await prompt("Recovery codes", [el("p", {}, "Each lets you in once without the app. They are shown only now: keep them safe."), el("pre", { class: "code", tabindex: "0" }, done.recovery_codes.join("\n"))], "I have kept them");
}

// ---- start ---------------------------------------------------------------------------------------------------------------

function build() {
  parts.views = el("nav", { class: "views", "aria-label": "Views" });
  parts.presence = el("select", { class: "presence", "aria-label": "My status", onchange: (event) => (event.target.value === "until" ? choosePresenceUntil() : choosePresence(event.target.value)) }, Object.entries(STATUSES).map(([key, word]) => el("option", { value: key }, word)));
  parts.search = el("input", { type: "search", class: "input", placeholder: "Search messages and people", "aria-label": "Search messages and people", maxlength: "200" });
  let searchTimer = 0;
  parts.search.addEventListener("input", () => {
    clearTimeout(searchTimer);
    searchTimer = setTimeout(() => showView(state.view, parts.search.value.trim()), 250);
  });
  parts.scroller = el("div", { class: "scroller", tabindex: "-1" });
  parts.none = el("p", { class: "none", hidden: true });
  parts.bulk = el("div", { class: "bulk", role: "toolbar", "aria-label": "Selected conversations", hidden: true });
  parts.offline = el("p", { class: "notice warn", role: "status", hidden: true }, "No connection; trying again. What you write is kept.");
  parts.head = el("header", { class: "head" });
  parts.list = el("ol", { class: "messages" });
  parts.thread = el("div", { class: "thread", tabindex: "0", role: "region", "aria-label": "Messages" }, parts.list);
  parts.typing = el("span", { class: "typing" });
  parts.watching = el("span", { class: "watching" });
  parts.reply = el("button", { type: "button", class: "tab", title: "Reply (R)", onclick: () => setMode("reply") }, "Reply");
  parts.note = el("button", { type: "button", class: "tab", title: "Note (N)", onclick: () => setMode("note") }, "Note");
  parts.input = el("textarea", { class: "input", rows: "2", maxlength: "4000", dir: "auto", "aria-controls": "suggest", "aria-autocomplete": "list" });
  parts.suggest = el("ul", { class: "suggest", id: "suggest", role: "listbox", "aria-label": "Suggestions", hidden: true });
  parts.files = el("ul", { class: "files", hidden: true });
  parts.pick = el("input", { type: "file", multiple: true, hidden: true, "aria-label": "Attach a file", onchange: (event) => { attach([...event.target.files]); event.target.value = ""; } });
  parts.composer = el("form", { class: "composer", onsubmit: (event) => { event.preventDefault(); submit(); } },
    el("div", { class: "tabs-line" }, parts.reply, parts.note, el("span", { class: "told", role: "status" }, parts.typing, parts.watching)), parts.files, parts.suggest, parts.input,
    el("div", { class: "send-line" }, button("Attach", () => parts.pick.click(), { icon: "clip", class: "btn s ghost" }), parts.pick, el("span", { class: "dim small grow hint" }, "Enter sends, Shift+Enter starts a new line"), el("button", { type: "submit", class: "btn primary s" }, "Send")));
  parts.stage = el("section", { class: "stage", "aria-label": "Conversation", hidden: true }, parts.head, parts.thread, parts.composer);
  parts.blank = el("section", { class: "blank", "aria-label": "Conversation" }, el("div", { class: "empty" }, icon(ICONS.desk), el("h1", {}, "No conversation is open"), el("p", {}, "Choose one on the left, or take the next one waiting."), button("Take the next one", actions.next, { class: "btn primary", title: "W" })));
  parts.side = el("section", { class: "visitor", "aria-label": "Visitor" });
  parts.toasts = el("div", { class: "toast-list" });
  parts.announcer = el("p", { class: "sr", role: "status", "aria-live": "polite" });
  app.replaceChildren(
    el("div", { class: "rail" }, el("div", { class: "brand" }, el("img", { src: app.dataset.icon, alt: "", width: "28", height: "28" }), "Desk"), parts.presence, parts.views,
      el("div", { class: "rail-foot" }, state.me.role === "supervisor" ? el("a", { class: "view", href: "/desk/manage", title: "Reports and settings (V)" }, icon(ICONS.chart), el("span", {}, "Manage")) : null, el("button", { type: "button", class: "view", title: "Keyboard shortcuts (?)", onclick: sheet }, icon(ICONS.keys), el("span", {}, "Shortcuts")), el("button", { type: "button", class: "view", title: "My account (M)", onclick: account }, icon(ICONS.person), el("span", { class: "clip-line" }, state.me.name)))),
    el("section", { class: "inbox", "aria-label": "Conversations" },
      el("div", { class: "inbox-head" }, el("button", { type: "button", class: "btn ghost s only-phone", "aria-label": "Views and account", onclick: () => document.body.classList.toggle("menu-open") }, icon(ICONS.menu)), parts.search), parts.offline, parts.bulk, parts.none, parts.scroller),
    el("div", { class: "main" }, parts.blank, parts.stage), parts.side, parts.toasts, parts.announcer);
  parts.rows = new Rows(parts.scroller, { height: 84, make: row, near: () => queueMicrotask(loadMore) });

  parts.input.addEventListener("input", () => { grow(); offer(); typing(); saveDraft(); });
  parts.input.addEventListener("keydown", (event) => {
    if (suggest && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      suggest.at = (suggest.at + (event.key === "ArrowDown" ? 1 : -1) + suggest.items.length) % suggest.items.length;
      drawSuggest();
    } else if (suggest && (event.key === "Enter" || event.key === "Tab")) { event.preventDefault(); accept(); }
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
  });
  parts.input.addEventListener("blur", closeSuggest);
  parts.input.addEventListener("paste", (event) => { const files = [...(event.clipboardData?.files ?? [])]; if (files.length) { event.preventDefault(); attach(files); } });
  parts.stage.addEventListener("dragover", (event) => { if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); });
  parts.stage.addEventListener("drop", (event) => { if (event.dataTransfer?.files.length) { event.preventDefault(); attach([...event.dataTransfer.files]); } });
}

function fromHash() {
  const [view, id] = location.hash.slice(1).split("/");
  return { view: VIEWS.some(([known]) => known === view) ? view : null, id: /^cnv_[\w-]+$/.test(id ?? "") ? id : null };
}

async function start() {
  let own;
  try {
    own = await ask("GET", "/agents/me");
  } catch (error) {
    if (error.status === 401) return;
    if (error.status === 403) return location.assign("/desk/login");
    app.replaceChildren(el("p", { class: "notice bad", role: "alert" }, `The desk does not answer: ${error.message}. `, el("a", { href: "/desk" }, "Try again")));
    return;
  }
  state.me = own.agent;
  state.me.team_ids ??= [];
  build();
  showPresence(own.presence);
  for (const [key, text] of Object.entries(setting.get("drafts", {}))) state.drafts.set(key, text);
  state.hasDetails = setting.get("details", innerWidth > 1250) && innerWidth > 900;
  document.body.classList.toggle("has-details", state.hasDetails);
  const first = fromHash();
  await attempt(loadPeople);
  await showView(first.view ?? setting.get("view", "mine"));
  link.start();
  if (first.id) go(first.id);
  addEventListener("popstate", () => {
    const to = fromHash();
    if (to.view && to.view !== state.view) showView(to.view);
    if (to.id !== state.open) go(to.id, true);
  });
  // A window that becomes narrow shows the conversation, not the visitor over it.
  matchMedia("(max-width: 860px)").addEventListener("change", (event) => document.body.classList.toggle("has-details", state.hasDetails && !event.matches));
  document.addEventListener("visibilitychange", () => { tellFocus(); if (!document.hidden) markRead(); });
  navigator.serviceWorker?.addEventListener("message", (event) => { if (/^cnv_[\w-]+$/.test(event.data?.open ?? "")) go(event.data.open); });
  renewPush();
  // Times, typing that ended, and the countdown of what can be taken back.
  setInterval(() => {
    let isStale = state.pending.some((item) => item.id === state.open && !item.isSent);
    for (const [id, { until }] of state.typing) if (until < Date.now()) { state.typing.delete(id); isStale = true; }
    if (isStale) drawSoon();
  }, 500);
  setInterval(drawSoon, 30_000);
}

start();
