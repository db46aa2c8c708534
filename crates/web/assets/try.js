// The API page: builds a form for every operation of the OpenAPI document.
const root = document.getElementById("operations");
const find = document.getElementById("find");

// `code` in descriptions.
const ticks = (text) => text.split("`").map((piece, index) => (index % 2 ? make("code", {}, piece) : piece));

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const spec = await (await fetch("/api/openapi.json")).json();
const resolve = (thing) => {
  let here = thing;
  for (let depth = 0; here?.$ref && depth < 16; depth++) {
    here = here.$ref.slice(2).split("/").reduce((at, step) => at?.[step], spec);
  }
  return here ?? {};
};

// An example of a schema: what a person would start from.
function example(schema, depth = 0) {
  const here = resolve(schema);
  if (here.example !== undefined) return here.example;
  if (here.examples?.length) return here.examples[0];
  if (here.default !== undefined) return here.default;
  if (here.enum) return here.enum[0];
  const either = here.oneOf ?? here.anyOf;
  if (either) return example(either.find((one) => resolve(one).type !== "null") ?? either[0], depth + 1);
  if (here.allOf) return Object.assign({}, ...here.allOf.map((part) => example(part, depth + 1)));
  const type = Array.isArray(here.type) ? here.type.find((one) => one !== "null") : here.type;
  if (depth > 6) return null;
  if (type === "object" || here.properties) {
    const required = new Set(here.required ?? []);
    return Object.fromEntries(Object.entries(here.properties ?? {})
      .filter(([name, part]) => required.has(name) || resolve(part).example !== undefined)
      .map(([name, part]) => [name, example(part, depth + 1)]));
  }
  if (type === "array") return [];
  if (type === "integer" || type === "number") return here.minimum ?? 0;
  if (type === "boolean") return false;
  return "";
}

function operation(method, path, op) {
  const parameters = (op.parameters ?? []).map(resolve);
  const inputs = parameters.map((parameter) => {
    const schema = resolve(parameter.schema);
    const input = make("input", {
      class: "input", type: "text", name: parameter.name, required: parameter.required,
      placeholder: String(parameter.example ?? schema.example ?? schema.default ?? schema.type ?? ""), autocomplete: "off",
    });
    return make("label", { class: "field" }, make("span", {}, `${parameter.name}${parameter.required ? " *" : ""} (${parameter.in})`),
      input, make("small", {}, ...ticks(parameter.description ?? "")));
  });
  const content = resolve(op.requestBody).content?.["application/json"];
  const body = content && make("textarea", { class: "input mono", rows: "8", name: "·body", spellcheck: "false" },
    JSON.stringify(example(content.schema), null, 2));
  const out = make("div", { "aria-live": "polite" });
  const form = make("form", { class: "op-body" },
    op.description ? make("p", { class: "dim" }, ...ticks(op.description)) : null,
    inputs.length ? make("div", { class: "form-row" }, ...inputs) : null,
    body ? make("label", { class: "field" }, make("span", {}, "Body"), body) : null,
    answers(op),
    make("div", { class: "actions" }, make("button", { class: "btn primary", type: "submit" }, "Send")),
    out);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(method, path, parameters, form, body, out);
  });
  const details = make("details", { class: "op" },
    make("summary", {},
      make("span", { class: `method ${method}` }, method.toUpperCase()),
      make("span", { class: "path" }, path),
      make("span", { class: "sum" }, ...ticks(op.summary ?? ""))),
    form);
  details.dataset.text = `${method} ${path} ${op.summary ?? ""} ${op.operationId ?? ""}`.toLowerCase();
  return details;
}

function answers(op) {
  const rows = Object.entries(op.responses ?? {}).map(([status, answer]) => {
    const tone = status < "300" ? "good" : status < "500" ? "warn" : "bad";
    return make("li", {}, make("span", { class: `badge mono ${tone}` }, status), " ", make("span", { class: "small dim" }, ...ticks(resolve(answer).description ?? "")));
  });
  return make("details", {}, make("summary", { class: "small" }, "Answers"), make("ul", { class: "stack" }, ...rows));
}

async function send(method, path, parameters, form, body, out) {
  let address = path;
  const query = new URLSearchParams();
  const headers = { accept: "application/json" };
  for (const { name, in: place } of parameters) {
    const value = form.elements[name].value;
    if (place === "path") address = address.replace(`{${name}}`, encodeURIComponent(value));
    else if (value === "") continue;
    else if (place === "query") query.set(name, value);
    else if (place === "header") headers[name] = value;
  }
  if ([...query].length) address += `?${query}`;
  const options = { method: method.toUpperCase(), headers };
  if (body?.value.trim()) { options.body = body.value; headers["content-type"] = "application/json"; }
  const started = performance.now();
  let answer;
  try {
    answer = await fetch(address, options);
  } catch (error) {
    out.replaceChildren(make("div", { class: "notice bad" }, String(error)));
    return;
  }
  const took = Math.round(performance.now() - started);
  const stream = (answer.headers.get("content-type") ?? "").startsWith("text/event-stream");
  const text = stream ? "A stream of events; follow it with an EventSource." : await answer.text();
  if (stream) answer.body?.cancel();
  let shown = text;
  try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON */ }
  const curl = [`curl -X ${options.method} '${location.origin}${address}' -H 'authorization: Bearer $TIDEGATE_TOKEN'`,
    options.body ? ` -H 'content-type: application/json' -d '${options.body.replaceAll("'", "'\\''")}'` : ""].join("");
  out.replaceChildren(
    make("p", { class: "small" }, make("span", { class: `badge ${answer.ok ? "good" : "bad"}` }, `${answer.status}`), ` in ${took} ms`),
    make("pre", { class: "code", tabindex: "0" }, shown),
    make("p", { class: "small dim" }, "The same from a shell:"),
    make("pre", { class: "code", tabindex: "0" }, curl));
}

const groups = new Map((spec.tags ?? []).map((tag) => [tag.name, { tag, operations: [] }]));
for (const [path, item] of Object.entries(spec.paths)) {
  for (const [method, op] of Object.entries(item)) {
    if (!["get", "post", "put", "patch", "delete"].includes(method)) continue;
    const name = op.tags?.[0] ?? "other";
    if (!groups.has(name)) groups.set(name, { tag: { name }, operations: [] });
    groups.get(name).operations.push(operation(method, path, op));
  }
}
root.replaceChildren(...[...groups.values()].filter((group) => group.operations.length).map((group) =>
  make("section", { class: "stack" },
    make("div", {}, make("h2", {}, group.tag.name), make("p", { class: "dim" }, group.tag.description ?? "")),
    make("div", {}, ...group.operations))));

find.addEventListener("input", () => {
  const word = find.value.trim().toLowerCase();
  for (const element of root.querySelectorAll(".op")) element.hidden = !element.dataset.text.includes(word);
  for (const section of root.querySelectorAll("section")) section.hidden = !section.querySelector(".op:not([hidden])");
});
