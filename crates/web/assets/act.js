// Acts: buttons with data-act="METHOD /path" and forms with data-api="METHOD /path" call the API.
// data-body       JSON sent along (buttons)
// data-confirm    a sentence to confirm first; data-confirm-word must be typed when given
// data-each       do it for each checked box: {id} in the path is its value, {count} in data-done how many
// data-done       said afterwards; data-then="reload|/path" is where to go
// data-secret     name of a field of the answer to show once
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
    if (copier) navigator.clipboard?.writeText(copier.dataset.copy).then(() => toast("Copied"));
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
  const body = {};
  for (const element of form.elements) {
    const { name, type, value } = element;
    if (!name || inPath.has(name) || element.disabled) continue;
    if (type === "checkbox") {
      if (element.dataset.list !== undefined) { if (element.checked) (body[name] ??= []).push(value); }
      else put(body, name, element.checked);
    } else if (type === "radio") { if (element.checked) put(body, name, value); }
    else if (value === "" && !element.required) continue;
    else if (type === "number" || element.dataset.kind === "number") put(body, name, Number(value));
    else if (element.dataset.kind === "list") put(body, name, value.split(/[\s,]+/).filter(Boolean));
    else if (element.dataset.kind === "json") put(body, name, JSON.parse(value));
    else put(body, name, value);
  }
  if (form.dataset.checked) {
    body[form.dataset.checkedName ?? "ids"] = [...document.querySelectorAll(form.dataset.checked + ":checked")].map((box) => box.value);
  }
  return body;
}

// a.b.c names a field inside a field.
function put(body, name, value) {
  const path = name.split(".");
  const last = path.pop();
  let at = body;
  for (const step of path) at = at[step] ??= {};
  at[last] = value;
}

async function run(element, call) {
  const { confirm: sentence, confirmWord, done, then, secret } = element.dataset;
  if (sentence && !(await ask(sentence, confirmWord, element.dataset.confirmVerb))) return;
  const submit = element.matches("form") ? element.querySelector("[type=submit]") : element;
  if (submit) submit.disabled = true;
  try {
    const answer = await call();
    if (element.matches("form")) element.closest("dialog")?.close();
    if (secret && answer?.[secret]) await reveal(answer[secret]);
    const said = done?.replace(/\{(\w+)\}/g, (_, k) => answer?.[k] ?? "");
    if (then) {
      if (said) sessionStorage.setItem("toast", said);
      location.assign(then === "reload" ? location.href : then.replace(/\{(\w+)\}/g, (_, k) => encodeURIComponent(answer?.[k] ?? "")));
      return;
    }
    toast(said ?? "Done");
    if (element.matches("form")) element.reset();
  } catch (error) {
    toast(error.message, true);
    if (error.field && element.matches("form")) element.elements[error.field]?.focus();
  } finally {
    if (submit) submit.disabled = false;
  }
}

export async function act(what, body) {
  const [method, path] = what.split(" ");
  const options = { method, headers: { accept: "application/json" } };
  if (body !== undefined && method !== "GET") {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
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
function ask(sentence, word, verb) {
  const dialog = $("#confirm");
  dialog.querySelector("[data-text]").textContent = sentence;
  const field = dialog.querySelector("[data-word]");
  const input = field.querySelector("input");
  const yes = dialog.querySelector("[value=yes]");
  yes.textContent = verb || "Confirm";
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

export function toast(text, bad = false) {
  const box = document.createElement("div");
  box.className = "toast" + (bad ? " bad" : "");
  box.setAttribute("role", bad ? "alert" : "status");
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.setAttribute("aria-label", "Dismiss");
  close.textContent = "×";
  close.onclick = () => box.remove();
  box.append(words, close);
  $("#toasts").append(box);
  setTimeout(() => box.remove(), bad ? 9000 : 4500);
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
