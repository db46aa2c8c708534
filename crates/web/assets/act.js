// Acts: buttons with data-act="METHOD /path" and forms with data-api="METHOD /path" call the API.
// data-body       JSON sent along (buttons)
// data-confirm    a sentence to confirm first; data-confirm-word must be typed when given, for what cannot be
//                 undone. The dialog is calm unless the button is a dangerous one (class danger)
// data-undo       METHOD /path that takes it back; the message afterwards offers Undo
// data-each       do it for each checked box: {id} in the path is its value, {count} in data-done how many
// data-done       said afterwards; data-then="reload|/path" is where to go
// data-secret     name of a field of the answer to show once
// data-base       JSON that the fields of a form are put into (forms)
// data-keep-values  of a form: what was typed stays after it was sent
// data-kind       of a field: number, list (words), json (sent as it was written, digit for digit), duration (5m,
//                 sent in seconds), rate (500/min, sent as count and per_seconds; data-flat: as fields of the body),
//                 number-or-word
// data-empty      of a field: sent also when it is empty; "parent" sends only the object it would be in
// data-covers     of a field: other names under which errors about it come
// data-copy-link  path of this server whose address is copied
const $ = (selector) => document.querySelector(selector);

export function start() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) {
      event.preventDefault();
      const { act: what, each, body } = button.dataset;
      run(button, () => (each ? actOnEach(what, each, json(body)) : act(what, json(body))));
    }
    const opener = event.target.closest("[data-open]");
    if (opener) { event.preventDefault(); document.getElementById(opener.dataset.open)?.showModal(); }
    const closer = event.target.closest("[data-close]");
    if (closer) { event.preventDefault(); closer.closest("dialog")?.close(); }
    const copier = event.target.closest("[data-copy]");
    if (copier) { event.preventDefault(); copyText(copier.dataset.copy); }
    const linker = event.target.closest("[data-copy-link]");
    if (linker) { event.preventDefault(); copyText(location.origin + linker.dataset.copyLink); }
    const theme = event.target.closest("[data-theme-switch]");
    if (theme) switchTheme();
  });
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-api]");
    if (!form) return;
    event.preventDefault();
    run(form, () => act(fill(form.dataset.api, form), fields(form)), form);
  });
  document.addEventListener("change", (event) => {
    const auto = event.target.closest("[data-submit-on-change]");
    if (auto) auto.form.requestSubmit();
    const all = event.target.closest("[data-check-all]");
    if (all) for (const box of document.querySelectorAll(all.dataset.checkAll)) box.checked = all.checked;
    if (event.target.matches("input[type=checkbox]")) counts();
  });
  document.addEventListener("live:shown", counts);
  openNamed();
  addEventListener("hashchange", openNamed);
  // On a phone the row of tabs is longer than the screen.
  document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

// A link may open a form or a question of the page, as #new-queue; it never does anything by itself.
function openNamed() {
  const id = decodeURIComponent(location.hash.slice(1));
  const named = id && document.getElementById(id);
  if (!named || document.querySelector("dialog[open]")) return;
  if (named.matches("dialog:not(#confirm, #secret, #palette)")) named.showModal();
  else if (named.matches("[data-act][data-confirm]")) named.click();
  else return;
  history.replaceState(null, "", location.pathname + location.search);
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    // Without a secure context browsers copy only what is selected.
    const area = Object.assign(document.createElement("textarea"), { value: text });
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    toast(copied ? "Copied" : "This browser does not allow copying here. Select the text and copy it.", !copied);
  }
}

// Buttons for the checked rows say how many those are.
function counts() {
  for (const bar of document.querySelectorAll("[data-for-checked]")) {
    const count = document.querySelectorAll(bar.dataset.forChecked + ":checked").length;
    bar.hidden = count === 0;
    const label = bar.querySelector("[data-count]");
    if (label) label.textContent = String(count);
  }
}

const json = (text) => (text ? JSON.parse(text) : undefined);

// {id} in a path comes from the form's field of that name, which is then not in the body.
function fill(api, form) {
  return api.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(form.elements[name].value.trim()));
}

function fields(form) {
  const inPath = new Set([...form.dataset.api.matchAll(/\{(\w+)\}/g)].map((match) => match[1]));
  const body = json(form.dataset.base) ?? {};
  for (const element of form.elements) {
    const { name, type, value } = element;
    if (!name || inPath.has(name) || element.disabled) continue;
    if (type === "checkbox") {
      if (element.dataset.list !== undefined) {
        if (element.checked || element.dataset.empty !== undefined) body[name] ??= [];
        if (element.checked) body[name].push(value);
      }
      else put(body, name, element.checked);
    } else if (type === "radio") { if (element.checked) put(body, name, value); }
    else if (value === "" && element.dataset.empty === "parent") parent(body, name);
    else if (value === "" && !element.required && element.dataset.empty === undefined) continue;
    else if (element.dataset.kind === "duration") put(body, name, seconds(name, value));
    else if (element.dataset.kind === "rate") {
      if (element.dataset.flat !== undefined) Object.assign(body, rate(name, value));
      else put(body, name, rate(name, value));
    } else if (element.dataset.kind === "number-or-word") put(body, name, /^\d+$/.test(value.trim()) ? Number(value) : value.trim());
    else if (type === "number" || element.dataset.kind === "number") put(body, name, Number(value));
    else if (element.dataset.kind === "list") put(body, name, value.split(/[\s,]+/).filter(Boolean));
    else if (element.dataset.kind === "json") put(body, name, verbatim(name, value));
    else put(body, name, value);
  }
  if (form.dataset.checked) {
    body[form.dataset.checkedName ?? "ids"] = [...document.querySelectorAll(form.dataset.checked + ":checked")].map((box) => box.value);
  }
  return body;
}

// JSON that a person wrote. Parsing it would change long numbers, so it is kept as text, and `write` puts it
// into the body.
class Verbatim {
  constructor(text) { this.text = text; }
}

function verbatim(name, text) {
  try {
    JSON.parse(text);
  } catch (error) {
    const problem = new Error(`${name} is not valid JSON: ${error.message}`);
    problem.field = name;
    throw problem;
  }
  return new Verbatim(text);
}

function write(body) {
  const texts = [];
  const mark = `\u0000${Math.random()}:`;
  const text = JSON.stringify(body, (_, value) => (value instanceof Verbatim ? mark + (texts.push(value.text) - 1) : value));
  return texts.reduce((written, part, at) => written.replace(JSON.stringify(mark + at), () => part), text);
}

// a.b.c names a field inside a field.
function put(body, name, value) {
  parent(body, name)[name.split(".").pop()] = value;
}

function parent(body, name) {
  return name.split(".").slice(0, -1).reduce((at, step) => (at[step] ??= {}), body);
}

const UNITS = { s: 1, sec: 1, m: 60, min: 60, h: 3600, hour: 3600, d: 86400, day: 86400 };

function wrong(field, message) {
  return Object.assign(new Error(message), { field });
}

// "5m", "90s", "1h 30m" in seconds; a number alone is seconds.
function seconds(name, text) {
  const parts = [...text.trim().toLowerCase().matchAll(/(\d+)\s*([a-z]*)\s*/g)];
  const whole = parts.map((part) => part[0]).join("") === text.trim().toLowerCase();
  if (!parts.length || !whole || parts.some(([, , unit]) => unit && !(unit in UNITS))) {
    throw wrong(name, "write a time such as 30s, 5m or 2h");
  }
  return parts.reduce((sum, [, count, unit]) => sum + Number(count) * (UNITS[unit] ?? 1), 0);
}

// "500/min", "10/s", "5/10s" as a count per seconds.
function rate(name, text) {
  const [, count, times, unit] = /^([\d,]+)\s*\/\s*(\d*)\s*([a-z]+)$/.exec(text.trim().toLowerCase()) ?? [];
  if (!count || !(unit in UNITS)) throw wrong(name, "write a rate such as 500/min, 10/s or 5/10s");
  return { count: Number(count.replaceAll(",", "")), per_seconds: Number(times || 1) * UNITS[unit] };
}

async function run(element, call) {
  const { confirm: sentence, confirmWord, done, then, secret, undo } = element.dataset;
  const calm = !element.matches(".danger") && !confirmWord;
  if (sentence && !(await ask(sentence, confirmWord, element.dataset.confirmVerb, calm))) return;
  if (element.matches("form")) clearErrors(element);
  const submit = element.matches("form") ? element.querySelector("[type=submit]") : element;
  if (submit) submit.disabled = true;
  try {
    const answer = await call();
    if (element.matches("form")) element.closest("dialog")?.close();
    document.dispatchEvent(new CustomEvent("act:done"));
    if (secret && answer?.[secret]) await reveal(answer[secret]);
    const said = done?.replace(/\{(\w+)\}/g, (_, k) => answer?.[k] ?? "");
    if (then) {
      if (said) sessionStorage.setItem("toast", said);
      location.assign(then === "reload" ? location.href : then.replace(/\{(\w+)\}/g, (_, k) => encodeURIComponent(answer?.[k] ?? "")));
      return;
    }
    toast(said ?? "Done", false, undo && (async () => {
      try { await act(undo); toast("Undone"); } catch (error) { toast(error.message, true); }
    }));
    if (element.matches("form") && element.dataset.keepValues === undefined) element.reset();
  } catch (error) {
    if (!(element.matches("form") && showError(element, error))) toast(error.message, true);
  } finally {
    if (submit) submit.disabled = false;
  }
}

// Puts an error beside the field it is about; false when there is no such field.
function showError(form, error) {
  if (!error.field) return false;
  const named = form.elements[error.field] ?? form.querySelector(`[data-covers~="${CSS.escape(error.field)}"]`);
  const field = named instanceof RadioNodeList ? named[0] : named;
  if (!field?.closest || field.type === "hidden") return false;
  const place = field.closest(".field") ?? field.parentElement;
  const id = `error-${error.field.replaceAll(/\W/g, "-")}`;
  const told = Object.assign(document.createElement("small"), { className: "field-error", id, textContent: sentence(error.message) });
  told.setAttribute("role", "alert");
  place.append(told);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", id);
  field.focus();
  field.addEventListener("input", () => clearErrors(form), { once: true });
  return true;
}

function clearErrors(form) {
  for (const told of form.querySelectorAll(".field-error[id]")) told.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) { field.removeAttribute("aria-invalid"); field.removeAttribute("aria-describedby"); }
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export async function act(what, body) {
  const [method, path] = what.split(" ");
  const options = { method, headers: { accept: "application/json" } };
  if (body !== undefined && method !== "GET") {
    options.headers["content-type"] = "application/json";
    options.body = write(body);
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server cannot be reached. Nothing was changed as far as this page knows.");
  }
  const text = await answer.text();
  const data = text ? JSON.parse(text) : null;
  if (answer.ok) return data;
  if (answer.status === 401) { location.reload(); }
  const error = new Error(data?.error?.message ?? `The server answered ${answer.status}.`);
  error.field = data?.error?.details?.field;
  throw error;
}

// Calls the API for every checked box, a few at a time; fails only when none worked.
async function actOnEach(what, selector, body) {
  const ids = [...document.querySelectorAll(selector + ":checked")].map((box) => box.value);
  let [count, problem] = [0, null];
  for (let at = 0; at < ids.length; at += 8) {
    await Promise.all(ids.slice(at, at + 8).map(async (id) => {
      try { await act(what.replace("{id}", encodeURIComponent(id)), body); count += 1; }
      catch (error) { problem = error; }
    }));
  }
  if (!count && problem) throw problem;
  return { count: problem ? `${count} of ${ids.length}: ${problem.message}` : count };
}

// Asks in a dialog; resolves to true when confirmed.
function ask(sentence, word, verb, calm) {
  const dialog = $("#confirm");
  dialog.querySelector("h2").textContent = calm ? (verb ? `${verb}?` : "Go on?") : "Are you sure?";
  dialog.querySelector("[data-text]").textContent = sentence;
  const field = dialog.querySelector("[data-word]");
  const input = field.querySelector("input");
  const yes = dialog.querySelector("[value=yes]");
  yes.textContent = verb || "Confirm";
  yes.className = calm ? "btn primary" : "btn danger solid";
  field.hidden = !word;
  input.value = "";
  dialog.querySelector("[data-word-text]").textContent = word ?? "";
  const fit = () => { yes.disabled = Boolean(word) && input.value !== word; };
  input.oninput = fit;
  fit();
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// Shows a secret once.
function reveal(text) {
  const dialog = $("#secret");
  dialog.querySelector("code").textContent = text;
  dialog.querySelector("[data-copy]").dataset.copy = text;
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(), { once: true }));
}

export function toast(text, bad = false, undo = null) {
  const box = document.createElement("div");
  box.className = "toast" + (bad ? " bad" : "");
  box.setAttribute("role", bad ? "alert" : "status");
  const words = document.createElement("span");
  words.textContent = sentence(text);
  box.append(words);
  if (undo) {
    const back = Object.assign(document.createElement("button"), { type: "button", className: "undo", textContent: "Undo" });
    back.onclick = () => { close(box); undo(); };
    box.append(back);
  }
  const dismiss = document.createElement("button");
  dismiss.type = "button";
  dismiss.setAttribute("aria-label", "Dismiss");
  dismiss.textContent = "×";
  dismiss.onclick = () => close(box);
  box.append(dismiss);
  const stack = $("#toasts");
  stack.append(box);
  // In the top layer, above the backdrop of a dialog; shown again to be above one that opened since.
  if (stack.showPopover) { if (stack.matches(":popover-open")) stack.hidePopover(); stack.showPopover(); }
  setTimeout(() => close(box), bad ? 9000 : undo ? 8000 : 4500);
}

function close(box) {
  box.remove();
  const stack = $("#toasts");
  if (!stack.children.length && stack.hidePopover && stack.matches(":popover-open")) stack.hidePopover();
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const next = dark ? "light" : "dark";
  root.dataset.theme = next;
  document.cookie = `tidegate_theme=${next}; path=/; max-age=31536000; samesite=lax`;
}

const waiting = sessionStorage.getItem("toast");
if (waiting) {
  sessionStorage.removeItem("toast");
  // Modules run when the whole page is there.
  toast(waiting);
}
