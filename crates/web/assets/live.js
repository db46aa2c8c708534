// One stream of live page parts per tab. The server sends { topic, html }; the part's element is
// brought to that state node by node, so that focus, selection and open menus survive. A part with
// data-steady, or an element with it inside a part, stands still while rows of it are chosen, pointed at or touched,
// and catches up afterwards. On a phone, where rows fill the screen, it also stands still when rows would move, and
// a button offers the new ones. All stand still while updates are paused. What is inside an element with data-own
// belongs to another script.
const root = document.documentElement;
let source = null;
let downSince = 0;
let paused = false;
// Until when each steady part stands still after a finger was on it.
const touched = new WeakMap();
const TOUCH_MS = 6000;

export function start() {
  const topics = [...new Set([...document.querySelectorAll("[data-live]")].map((e) => e.dataset.live))];
  if (!topics.length || !window.EventSource) return;
  source = new EventSource("/api/v1/live?topics=" + encodeURIComponent(topics.join(" ")));
  source.addEventListener("open", () => state("on"));
  source.addEventListener("hello", () => state("on"));
  source.addEventListener("part", (event) => {
    state("on");
    const { topic, html } = JSON.parse(event.data);
    for (const element of document.querySelectorAll("[data-live]")) {
      if (element.dataset.live === topic) offer(element, html);
    }
  });
  source.addEventListener("error", () => {
    // A blink is no news; browsers come back by themselves.
    downSince ||= Date.now();
    if (connection === "on") state("wait");
    setTimeout(() => { if (downSince && Date.now() - downSince >= 2500) state("off"); }, 2600);
    if (source.readyState === EventSource.CLOSED) setTimeout(check, 3000);
  });
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) start(); });
}

document.addEventListener("click", (event) => {
  if (!event.target.closest?.("[data-live-pause]")) return;
  paused = !paused;
  for (const button of document.querySelectorAll("[data-live-pause]")) {
    button.setAttribute("aria-pressed", String(paused));
    button.title = paused ? "Go on with live updates" : "Pause live updates";
  }
  state(connection);
  if (!paused) release();
});

document.addEventListener("pointerdown", (event) => {
  const part = event.target.closest?.("[data-steady]");
  if (!part || event.pointerType !== "touch") return;
  touched.set(part, Date.now() + TOUCH_MS);
  setTimeout(() => { if (held.size) release(); }, TOUCH_MS + 50);
}, { passive: true });

// The stream was refused: the session may have ended.
async function check() {
  try {
    const answer = await fetch("/api/v1/me", { headers: { accept: "application/json" } });
    if (answer.status === 401) location.reload();
    else { source.close(); start(); }
  } catch {
    setTimeout(check, 5000);
  }
}

const WORDS = { on: "Live", wait: "Connecting", off: "Offline", paused: "Paused" };
let connection = "";

function state(word) {
  connection = word;
  if (word === "on") downSince = 0;
  const shown = word === "on" && paused ? "paused" : word;
  if (root.dataset.liveState !== shown) root.dataset.liveState = shown;
  for (const place of document.querySelectorAll("[data-live-word]")) {
    if (WORDS[shown] && place.textContent !== WORDS[shown]) place.textContent = WORDS[shown];
  }
}

// What each steady part would show, were it not held.
const held = new Map();

function offer(element, html) {
  const moves = !isHeld(element) && wouldMove(element, html);
  if (!moves && !isHeld(element)) {
    held.delete(element);
    moving.delete(element);
    delete element.dataset.held;
    return show(element, html);
  }
  held.set(element, html);
  if (moves) moving.add(element);
  else if (element.dataset.steady !== undefined) element.dataset.held = "";
  offerRows();
}

// Parts whose rows would move on a small screen: they wait for a tap on the button.
const moving = new Set();
const isSmall = () => matchMedia("(max-width: 620px)").matches;
const keysIn = (root) => [...root.querySelectorAll("[data-key]")].map((row) => row.dataset.key);

function wouldMove(element, html) {
  if (element.dataset.steady === undefined || !isSmall() || freeUntil > Date.now()) return false;
  const template = document.createElement("template");
  template.innerHTML = html;
  const before = keysIn(element);
  const after = keysIn(template.content);
  return before.length > 0 && before.join(" ") !== after.join(" ");
}

function offerRows() {
  let button = document.getElementById("new-rows");
  if (!button && moving.size) {
    button = Object.assign(document.createElement("button"), { id: "new-rows", type: "button", className: "btn primary", textContent: "Show new rows" });
    button.addEventListener("click", () => {
      for (const element of [...moving]) {
        const html = held.get(element);
        held.delete(element);
        delete element.dataset.held;
        if (html !== undefined) show(element, html);
      }
      moving.clear();
      offerRows();
    });
    document.body.append(button);
  }
  if (button) button.hidden = !moving.size;
}

// After an action of one's own its outcome is shown, wherever the pointer is.
let freeUntil = 0;
document.addEventListener("act:done", () => { freeUntil = Date.now() + 3000; release(); });

function isHeld(element) {
  if (paused) return true;
  if (element.dataset.steady === undefined) return false;
  if (freeUntil > Date.now()) return element.querySelector("input:checked") !== null;
  if ((touched.get(element) ?? 0) > Date.now()) return true;
  const pointed = matchMedia("(hover: hover)").matches && element.matches(":hover");
  return pointed || element.querySelector("input:checked") !== null || document.querySelector("dialog[open]") !== null;
}

function release() {
  for (const [element, html] of held) {
    if (isHeld(element) || moving.has(element)) continue;
    offer(element, html);
  }
}
for (const event of ["pointerout", "change", "close"]) {
  // After the event: what is pointed at, chosen or open is settled by then.
  document.addEventListener(event, () => { if (held.size) setTimeout(release); }, true);
}

export function show(element, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  morphChildren(element, template.content);
  element.dispatchEvent(new CustomEvent("live:shown", { bubbles: true }));
}

// Brings the children of `from` to those of `to`, keeping nodes that are alike.
function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let here = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = wanted.dataset?.key;
    let match = key ? keyed.get(key) : here;
    if (match && !key && match.dataset?.key) match = null;
    if (match && alike(match, wanted)) {
      if (match !== here) from.insertBefore(match, here);
      else here = here.nextSibling;
      morph(match, wanted);
    } else {
      from.insertBefore(wanted, here);
    }
  }
  while (here) {
    const next = here.nextSibling;
    // Tooltips and the like belong to the browser's side.
    if (!(here.nodeType === 1 && here.hasAttribute("data-keep"))) here.remove();
    here = next;
  }
}

const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName;

function morph(from, to) {
  if (from.nodeType !== 1) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  // What a person is typing or has opened stays theirs.
  const own = from === document.activeElement && "value" in from;
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && !(own && name === "value")) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && name !== "open" && name !== "data-keep" && name !== "data-held") from.removeAttribute(name);
  }
  if (own || from.hasAttribute("data-own")) return;
  if (from.hasAttribute("data-steady")) offer(from, to.innerHTML);
  else morphChildren(from, to);
}
