// Message text as DOM nodes from a small set: paragraphs, lists, bold, italic, code, links. Text of others is
// never parsed as HTML: every piece becomes a text node.

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else if (key in node && typeof value !== "string") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// A circle with the initials of a person, in a colour that stays theirs.
export function face(name) {
  const words = String(name ?? "").trim().split(/\s+/).filter(Boolean);
  const first = (word) => [...(word ?? "")][0] ?? "";
  const letters = words.length > 1 ? first(words[0]) + first(words.at(-1)) : first(words[0]);
  const hue = [...String(name ?? "")].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 6, 0);
  return el("span", { class: `face f${hue}`, "aria-hidden": "true" }, letters.toUpperCase() || "?");
}

const SVG = "http://www.w3.org/2000/svg";

export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

// Code first, so that nothing inside it is formatted; then links, bold, italic.
const INLINE = /`([^`\n]+)`|((?:https?:\/\/|mailto:)[^\s<>"'`]+)|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\s][^*\n]*)\*(?!\w)|(?<!\w)_([^_\s][^_\n]*)_(?!\w)/gu;
const TRAILING = /[.,:;!?)\]}]+$/;

// The address of a link, or nothing when it is not one we follow.
export function safeLink(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function inline(text, depth = 0) {
  const nodes = [];
  let at = 0;
  const plain = (end) => end > at && nodes.push(document.createTextNode(text.slice(at, end)));
  for (const match of text.matchAll(INLINE)) {
    if (match.index < at) continue;
    const [whole, code, link, bold, star, under] = match;
    let length = whole.length, node = null;
    if (code !== undefined) node = el("code", {}, code);
    else if (link !== undefined) {
      const shown = link.replace(TRAILING, (end) => (end.startsWith(")") && link.includes("(") ? end.slice(0, 1) : ""));
      const href = safeLink(shown);
      if (href) {
        length = shown.length;
        node = el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, shown.replace(/^mailto:/, ""));
      }
    } else if (depth < 3) {
      node = bold !== undefined ? el("strong", {}, inline(bold, depth + 1)) : el("em", {}, inline(star ?? under, depth + 1));
    }
    if (!node) continue;
    plain(match.index);
    nodes.push(node);
    at = match.index + length;
  }
  plain(text.length);
  return nodes;
}

const BULLET = /^\s*[-*•]\s+(.*)$/;
const NUMBER = /^\s*(\d{1,3})[.)]\s+(.*)$/;

export function render(text) {
  const out = document.createDocumentFragment();
  const lines = String(text ?? "").replace(/\r\n?/g, "\n").split("\n");
  let paragraph = [];
  const flush = () => {
    if (!paragraph.length) return;
    const node = el("p", { dir: "auto" });
    paragraph.forEach((line, n) => node.append(...(n ? [el("br")] : []), ...inline(line)));
    out.append(node);
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    if (line.trim().startsWith("```")) {
      const end = lines.findIndex((other, n) => n > at && other.trim() === "```");
      if (end > at) {
        flush();
        out.append(el("pre", { tabindex: "0" }, el("code", {}, lines.slice(at + 1, end).join("\n"))));
        at = end;
        continue;
      }
    }
    const kind = BULLET.test(line) ? BULLET : NUMBER.test(line) ? NUMBER : null;
    if (kind) {
      flush();
      const list = el(kind === BULLET ? "ul" : "ol", { dir: "auto" });
      if (kind === NUMBER) list.start = Number(line.match(NUMBER)[1]);
      for (; at < lines.length && kind.test(lines[at]); at += 1) list.append(el("li", {}, inline(lines[at].match(kind).at(-1))));
      at -= 1;
      out.append(list);
    } else if (line.trim() === "") flush();
    else paragraph.push(line);
  }
  flush();
  return out;
}
