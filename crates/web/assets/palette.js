// The command palette: Ctrl-K or ⌘K finds pages, things of the services, settings, documents and actions. Pages and
// actions are known here; the rest comes from GET /api/v1/search while one types.
import { act, toast } from "./act.js";

let dialog = null;
let asked = 0;
let timer = 0;

export function start() {
  dialog = document.getElementById("palette");
  if (!dialog) return;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
    }
  });
  document.addEventListener("click", (event) => { if (event.target.closest?.("[data-palette]")) open(); });
  const input = dialog.querySelector("input");
  input.addEventListener("input", () => { clearTimeout(timer); show(local(input.value)); timer = setTimeout(() => search(input.value), 150); });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); move(event.key === "ArrowDown" ? 1 : -1); }
    if (event.key === "Enter") { event.preventDefault(); dialog.querySelector('[aria-selected="true"]')?.click(); }
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}

function open() {
  if (document.querySelector("dialog[open]")) return;
  dialog.showModal();
  const input = dialog.querySelector("input");
  input.value = "";
  show(local(""));
  input.focus();
}

// Pages of the menu, and what this page offers.
function local(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const items = [
    ...[...document.querySelectorAll(".nav a")].map((link) => ({ category: "page", title: link.textContent.trim(), note: "", path: link.getAttribute("href") })),
    ...[...document.querySelectorAll(".page-head [data-open], .page-head [data-act]")].map((button) => ({ category: "action", title: button.textContent.trim(), note: "on this page", run: () => button.click() })),
    { category: "action", title: "Switch between light and dark", note: "", run: () => document.querySelector("[data-theme-switch]")?.click() },
    { category: "action", title: "Show the keyboard shortcuts", note: "", run: () => document.getElementById("keys")?.showModal() },
    { category: "action", title: "Log out", note: "", run: () => document.querySelector('form[action="/logout"]')?.requestSubmit() },
  ];
  return items.filter((item) => words.every((word) => item.title.toLowerCase().includes(word)));
}

async function search(text) {
  const ours = (asked += 1);
  const query = text.trim();
  if (query.length < 2) return;
  try {
    const { items } = await act("GET /api/v1/search?text=" + encodeURIComponent(query.slice(0, 100)));
    if (ours === asked && dialog.open) show([...local(text), ...items]);
  } catch (error) {
    if (ours === asked) toast(error.message, true);
  }
}

function show(items) {
  const list = dialog.querySelector("[role=listbox]");
  list.replaceChildren(...items.slice(0, 30).map((item, index) => {
    const row = document.createElement(item.path ? "a" : "button");
    if (item.path) row.href = item.path;
    else row.type = "button";
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(index === 0));
    row.id = `palette-${index}`;
    row.tabIndex = -1;
    const [kind, title, note] = [item.category, item.title, item.note].map((text) => Object.assign(document.createElement("span"), { textContent: text ?? "" }));
    kind.className = "badge";
    title.className = "grow clip-line";
    note.className = "dim small clip-line";
    row.append(kind, title, note);
    row.addEventListener("click", () => { dialog.close(); item.run?.(); });
    return row;
  }));
  dialog.querySelector("[data-none]").hidden = items.length > 0;
  dialog.querySelector("input").setAttribute("aria-activedescendant", items.length ? "palette-0" : "");
}

function move(by) {
  const rows = [...dialog.querySelectorAll("[role=option]")];
  if (!rows.length) return;
  const here = rows.findIndex((row) => row.getAttribute("aria-selected") === "true");
  const next = rows[(here + by + rows.length) % rows.length];
  for (const row of rows) row.setAttribute("aria-selected", String(row === next));
  next.scrollIntoView({ block: "nearest" });
  dialog.querySelector("input").setAttribute("aria-activedescendant", next.id);
}
