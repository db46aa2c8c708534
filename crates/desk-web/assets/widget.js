// The chat's launcher on a site: a button, and the panel in a frame of its own.
//
// Until it is opened, nothing is sent or stored. See docs/widget.md
(() => {
  "use strict";
  const script = document.currentScript;
  const earlier = window.Tidegate;
  if (!script || earlier?.loaded) return;
  const home = new URL(script.src).origin;
  const options = { ...script.dataset };
  const KEPT = "tidegate-chat";
  const lang = (options.lang || document.documentElement.lang || navigator.language || "en").toLowerCase();
  const [OPEN, CLOSE, UNREAD] =
    { de: ["Chat öffnen", "Chat schließen", "ungelesen"], es: ["Abrir el chat", "Cerrar el chat", "sin leer"] }[lang.slice(0, 2)] ||
    ["Open chat", "Close chat", "unread"];
  const listeners = {};
  let host, root, button, badge, frame, shown = false, ready = false, unread = 0, identity = null, from = null;
  const waiting = [];

  // Storage may be blocked.
  const kept = (value) => {
    try {
      if (value === undefined) return localStorage.getItem(KEPT) === "1";
      if (value) localStorage.setItem(KEPT, "1");
      else localStorage.removeItem(KEPT);
    } catch {}
    return false;
  };

  const CSS = `:host{all:initial}
button{all:unset;box-sizing:border-box;position:fixed;z-index:2147483646;bottom:20px;width:56px;height:56px;border-radius:50%;background:var(--brand);color:var(--on);cursor:pointer;display:grid;place-items:center;box-shadow:0 4px 18px #0047}
.r{right:20px}.l{left:20px}
button:hover{filter:brightness(1.08)}
button:focus-visible{outline:3px solid var(--brand);outline-offset:3px}
svg{width:26px;height:26px;fill:none;stroke:currentcolor;stroke-width:1.9;stroke-linecap:round;stroke-linejoin:round}
.n{position:absolute;top:-4px;right:-4px;min-width:22px;box-sizing:border-box;padding:0 6px;border-radius:11px;background:#b3261e;color:#fff;font:600 12px/22px system-ui,sans-serif;text-align:center}
.n:empty,[hidden]{display:none!important}
iframe{position:fixed;z-index:2147483647;bottom:88px;width:400px;height:min(680px,calc(100vh - 108px));border:0;border-radius:16px;box-shadow:0 12px 48px #0005;color-scheme:normal}
@media (max-width:520px),(max-height:440px){iframe{inset:var(--top,0) 0 auto;width:100%;height:var(--high,100dvh);border-radius:0}[aria-expanded=true]{visibility:hidden}}
@media (prefers-reduced-motion:no-preference){iframe{animation:up .18s ease-out}@keyframes up{from{opacity:0;transform:translateY(12px)}}}
@media print{button,iframe{display:none}}`;

  const CHAT = "M4 5.500h16v11h-9l-4.500 3.500v-3.500h-2.500z";
  const DOWN = "M6 9.500l6 6 6-6";

  // White or black on a colour, whichever reads better.
  function onColor(hex) {
    const [r, g, b] = [1, 3, 5].map((at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
  }

  function build() {
    if (host) return;
    host = document.createElement("div");
    host.id = "tidegate-chat";
    root = host.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(CSS);
    root.adoptedStyleSheets = [sheet];
    const color = /^#[0-9a-f]{6}$/i.test(options.color || "") ? options.color : "#08667d";
    host.style.setProperty("--brand", color);
    host.style.setProperty("--on", onColor(color));
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    svg.append(document.createElementNS(space, "path"));
    badge = document.createElement("span");
    badge.className = "n";
    button = document.createElement("button");
    button.type = "button";
    button.className = side();
    button.append(svg, badge);
    button.addEventListener("click", () => (shown ? close() : open()));
    root.append(button);
    document.body.append(host);
    draw();
  }

  const side = () => (options.position === "left" ? "l" : "r");

  function draw() {
    button.querySelector("path").setAttribute("d", shown ? DOWN : CHAT);
    button.setAttribute("aria-expanded", String(shown));
    button.setAttribute("aria-label", (shown ? CLOSE : OPEN) + (unread ? ` (${unread} ${UNREAD})` : ""));
    badge.textContent = unread && !shown ? (unread > 99 ? "99+" : unread) : "";
  }

  // On the first touch; on later pages of somebody with a conversation at once.
  function load() {
    if (frame) return;
    frame = document.createElement("iframe");
    frame.title = options.title || "Chat";
    frame.className = side();
    frame.hidden = true;
    const query = new URLSearchParams({ lang });
    for (const name of ["theme", "dir"]) if (options[name]) query.set(name, options[name]);
    frame.src = `${home}/widget?${query}`;
    root.append(frame);
  }

  // On phones the frame ends where the keyboard begins.
  window.visualViewport?.addEventListener("resize", () => {
    host?.style.setProperty("--high", `${visualViewport.height}px`);
    host?.style.setProperty("--top", `${visualViewport.offsetTop}px`);
  });

  // Without what may be secret in it.
  const page = () => location.origin + location.pathname;

  function tell(type, data) {
    const message = { tidegate: type, ...data };
    if (ready) frame.contentWindow.postMessage(message, home);
    else waiting.push(message);
  }

  function emit(name, data) {
    for (const listener of listeners[name] || []) setTimeout(listener, 0, data);
  }

  function open() {
    build();
    load();
    if (shown) return;
    from = document.activeElement;
    shown = true;
    frame.hidden = false;
    draw();
    tell("open", { page: page() });
    frame.focus();
    emit("open");
  }

  function close() {
    if (!shown) return;
    shown = false;
    frame.hidden = true;
    draw();
    tell("close");
    if (from?.isConnected && from !== document.body && from !== host) from.focus();
    else button.focus();
    emit("close");
  }

  // Logs the visitor out and removes everything.
  function shutdown() {
    identity = null;
    kept(false);
    const gone = host;
    if (!gone) return;
    if (ready) tell("shutdown");
    gone.style.display = "none";
    setTimeout(() => gone.remove(), 3000);
    host = root = button = badge = frame = null;
    shown = ready = false;
    unread = 0;
    waiting.length = 0;
  }

  addEventListener("message", ({ source, origin, data }) => {
    if (!frame || source !== frame.contentWindow || origin !== home || typeof data?.tidegate !== "string") return;
    switch (data.tidegate) {
      case "ready":
        ready = true;
        tell("init", { options, page: page(), identity, shown });
        for (const message of waiting.splice(0)) tell(message.tidegate, message);
        return emit("ready");
      case "unread":
        unread = Math.max(0, Number(data.count) || 0);
        draw();
        return emit("unread", unread);
      case "kept": return kept(true);
      case "close": return close();
      case "message": return emit("message", data.message);
      case "resolved": return emit("resolved", data.id);
    }
  });

  const calls = {
    open,
    close,
    shutdown,
    boot: (more) => { Object.assign(options, more); build(); },
    identify: (who) => {
      identity = who ? { ...who } : null;
      build();
      if (frame) tell("identify", { identity });
    },
    on: (name, listener) => { (listeners[name] ||= []).push(listener); },
  };
  const api = (name, ...rest) => {
    if (!Object.hasOwn(calls, name)) throw new Error(`Tidegate: no call "${name}"; use ${Object.keys(calls)}`);
    return calls[name](...rest);
  };
  api.loaded = true;
  window.Tidegate = api;

  function start() {
    if (options.launcher !== "none") build();
    for (const call of earlier?.q || []) api(...call);
    if (kept()) { build(); load(); }
  }
  if (document.body) start();
  else addEventListener("DOMContentLoaded", start);
})();
