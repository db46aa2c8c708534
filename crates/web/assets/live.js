// One stream of live page parts per tab. The server sends { topic, html }; the part's element is
// brought to that state node by node, so that focus, selection and open menus survive. A part with
// data-steady stands still while rows of it are chosen or pointed at, and catches up afterwards.
const root = document.documentElement;
let source = null;
let downSince = 0;

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
    setTimeout(() => { if (downSince && Date.now() - downSince >= 2500) state("off"); }, 2600);
    if (source.readyState === EventSource.CLOSED) setTimeout(check, 3000);
  });
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) start(); });
}

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

function state(word) {
  if (word === "on") downSince = 0;
  if (root.dataset.liveState !== word) root.dataset.liveState = word;
}

// What each steady part would show, were it not held.
const held = new Map();

function offer(element, html) {
  if (!isHeld(element)) return show(element, html);
  held.set(element, html);
  element.dataset.held = "";
}

function isHeld(element) {
  if (element.dataset.steady === undefined) return false;
  const pointed = matchMedia("(hover: hover)").matches && element.matches(":hover");
  return pointed || element.querySelector("input:checked") !== null || document.querySelector("dialog[open]") !== null;
}

function release() {
  for (const [element, html] of held) {
    if (isHeld(element)) continue;
    held.delete(element);
    delete element.dataset.held;
    show(element, html);
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
    if (!to.hasAttribute(name) && name !== "open" && name !== "data-keep") from.removeAttribute(name);
  }
  if (!own) morphChildren(from, to);
}
