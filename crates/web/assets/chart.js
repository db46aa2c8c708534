// Charts: figures with data-chart='[{"name","unit","series"}]', drawn from GET /api/v1/history. All charts of a
// page show the same range on the same axis; the pointer, a finger or the arrow keys show the values of one
// moment in all of them. A missing sample is a gap in the line. The range is in the address (#range=24h,
// #from=…&to=…) and is remembered for the next page. Where the page itself shows a range (data-ranged), a range that
// is picked is in the query of the address, too, and the page is loaded with it.
const SPANS = { "15m": 900, "1h": 3600, "24h": 86400, "7d": 604800, "30d": 2592000, "90d": 7776000 };
const [WIDTH, HEIGHT] = [600, 160];
const SVG = "http://www.w3.org/2000/svg";

let range = { name: "15m" };
// What is shown: first moment and step in seconds, and the values of each series by name.
let data = null;
let asked = 0;
let timer = 0;

export function start() {
  if (!document.querySelector("[data-chart]")) return;
  pick(fromAddress(), false);
  addEventListener("hashchange", () => pick(fromAddress(), false));
  document.addEventListener("live:shown", () => { if (charts().some((chart) => !chart.shape)) draw(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-range]");
    if (button && button.dataset.range !== "custom") pick({ name: button.dataset.range }, true);
  });
  document.addEventListener("submit", (event) => {
    if (event.target.id !== "range-custom") return;
    event.preventDefault();
    custom(event.target);
  });
  // Before it opens: "toggle" comes when somebody may have typed already.
  document.getElementById("range-custom")?.addEventListener("beforetoggle", (event) => { if (event.newState === "open") fillCustom(event.target); });
  pointing();
  addEventListener("resize", () => { if (data) draw(); });
}

const charts = () => [...document.querySelectorAll("[data-chart]")];
const seconds = () => Math.floor(Date.now() / 1000);

function fromAddress() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const [from, to] = [Number(fields.get("from")), Number(fields.get("to")) || null];
  if (from > 0) return { name: "custom", from, to };
  const shown = document.querySelector("[data-ranged]")?.dataset.ranged;
  const own = /^(\d+)-(\d*)$/.exec(shown ?? "");
  if (own) return { name: "custom", from: Number(own[1]), to: Number(own[2]) || null };
  const name = shown ?? fields.get("range") ?? sessionStorage.getItem("range");
  return { name: SPANS[name] ? name : "15m" };
}

function pick(next, keep) {
  range = next;
  if (keep) {
    const hash = next.from ? `#from=${next.from}${next.to ? `&to=${next.to}` : ""}` : `#range=${next.name}`;
    history.replaceState(null, "", hash);
    if (!next.from) sessionStorage.setItem("range", next.name);
    if (document.querySelector("[data-ranged]")) return location.assign(`${location.pathname}?${hash.slice(1)}`);
  }
  for (const button of document.querySelectorAll("[data-range]")) {
    button.setAttribute("aria-pressed", String(button.dataset.range === next.name));
  }
  data = null;
  load();
}

const local = (at) => new Date((at - new Date(at * 1000).getTimezoneOffset() * 60) * 1000).toISOString().slice(0, 16);

function fillCustom(form) {
  const [from, to] = bounds();
  form.elements.from.value = local(from);
  form.elements.to.value = range.to ? local(to) : "";
}

function custom(form) {
  const at = (name) => Math.floor(new Date(form.elements[name].value).getTime() / 1000);
  const [from, to] = [at("from"), form.elements.to.value ? at("to") : null];
  const wrong = (to ?? seconds()) <= from ? "The range ends before it begins. Choose an earlier beginning."
    : from < seconds() - 90 * 86400 ? "The history goes back 90 days. Choose a later beginning." : "";
  const told = form.querySelector(".field-error");
  told.textContent = wrong;
  told.hidden = !wrong;
  if (wrong) return form.elements.from.focus();
  form.hidePopover();
  pick({ name: "custom", from, to }, true);
}

function bounds() {
  const now = data?.now ?? seconds();
  return range.from ? [range.from, range.to ?? now] : [now - SPANS[range.name], now];
}

async function load() {
  clearTimeout(timer);
  const ours = (asked += 1);
  const names = [...new Set(charts().flatMap((chart) => lines(chart).map((line) => line.series)))];
  const since = data && data.step < 60 && !range.from ? data.first + (data.count - 4) * data.step : null;
  try {
    const parts = [];
    for (let at = 0; at < names.length; at += 60) parts.push(await ask(names.slice(at, at + 60), since));
    if (ours !== asked) return;
    take(parts, since !== null);
    draw();
  } catch {
    // The banner of the live connection says that the server is away; what is drawn stays.
  }
  if (ours !== asked || range.to) return;
  const pause = Math.min(60, Math.max(2, data ? data.step / 5 : 2));
  timer = setTimeout(() => { if (!document.hidden && document.documentElement.dataset.liveState !== "paused") load(); else timer = setTimeout(load, 2000); }, pause * 1000);
}

async function ask(names, since) {
  const query = new URLSearchParams({ series: names.join(",") });
  if (since !== null) { query.set("from", time(since)); query.set("step", data.step); }
  else if (range.from) { query.set("from", time(range.from)); if (range.to) query.set("to", time(range.to)); }
  else query.set("span_seconds", SPANS[range.name]);
  const answer = await fetch("/api/v1/history?" + query, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

const time = (at) => new Date(at * 1000).toISOString();

function take(parts, more) {
  if (!parts.length) return;
  const [first, step] = [Date.parse(parts[0].first_at) / 1000, parts[0].step_seconds];
  const fresh = new Map(parts.flatMap((part) => part.lines).map((line) => [line.series, line.values]));
  const now = Date.parse(parts[0].now_at) / 1000;
  if (more && data && step === data.step) {
    // The newest samples replace the end of what is there; what is too old goes.
    const keep = (first - data.first) / step;
    const drop = Math.max(0, Math.floor((now - SPANS[range.name] - data.first) / step));
    for (const [name, values] of fresh) {
      const old = data.values.get(name) ?? [];
      data.values.set(name, [...old.slice(0, keep), ...values].slice(drop));
    }
    data.first += drop * step;
    data.now = now;
  } else data = { first, step, now, values: fresh };
  data.count = Math.max(...[...data.values.values()].map((values) => values.length));
}

const lines = (chart) => (chart.lines ??= JSON.parse(chart.dataset.chart));

function draw() {
  if (!data) return;
  const [from, to] = bounds();
  for (const chart of charts()) {
    const parts = lines(chart).map((line) => data.values.get(line.series) ?? []);
    const highest = Math.max(0, ...parts.flat().filter((value) => value !== null));
    const bytes = chart.dataset.scale === "bytes";
    const top = nice(highest, bytes);
    const x = (index) => ((data.first + index * data.step - from) / (to - from)) * WIDTH;
    const y = (value) => HEIGHT - Math.min(1, value / top) * HEIGHT;
    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (let quarter = 0; quarter <= 4; quarter += 1) {
      const at = (HEIGHT * quarter) / 4;
      svg.append(make("line", { class: quarter === 4 ? "rule base" : "rule", x1: 0, x2: WIDTH, y1: at, y2: at }));
    }
    parts.forEach((values, index) => {
      for (const piece of pieces(values)) {
        const points = piece.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
        const path = "M" + points.join("L") + (points.length === 1 ? "h0" : "");
        const ends = [x(piece[0][0]).toFixed(1), x(piece.at(-1)[0]).toFixed(1)];
        if (index === 0) svg.append(make("path", { class: "area c1", d: `${path}L${ends[1]} ${HEIGHT}L${ends[0]} ${HEIGHT}Z` }));
        svg.append(make("path", { class: `line c${index + 1}${points.length === 1 ? " lone" : ""}`, d: path }));
      }
    });
    const plot = chart.querySelector(".plot");
    plot.querySelector("svg")?.remove();
    plot.prepend(svg);
    const none = parts.every((values) => values.every((value) => value === null));
    let note = plot.querySelector(".none");
    if (none && !note) { note = span("No samples in this range"); note.className = "none"; plot.append(note); }
    if (!none) note?.remove();
    chart.querySelector(".y").replaceChildren(...[4, 3, 2, 1, 0].map((quarter) => span(label((top * quarter) / 4, bytes))));
    const ticks = chart.clientWidth < 420 ? 2 : 4;
    chart.querySelector(".x").replaceChildren(...Array.from({ length: ticks + 1 }, (_, tick) => span(moment(from + ((to - from) * tick) / ticks, to - from))));
    chart.shape = { from, to };
    if (shown === null) legend(chart, null);
    else legend(chart, shown);
    plot.setAttribute("aria-label", `${chart.dataset.title}, ${moment(from, to - from)} to ${moment(to, to - from)}: ` +
      lines(chart).map((line) => `${line.name} ${value(line, newest(line), bytes)}`).join(", ") + ". Arrow keys read values.");
  }
  if (shown !== null) cross();
}

function* pieces(values) {
  let piece = [];
  for (const [at, value] of values.entries()) {
    if (value !== null) piece.push([at, value]);
    else if (piece.length) { yield piece; piece = []; }
  }
  if (piece.length) yield piece;
}

const newest = (line) => (data.values.get(line.series) ?? []).slice(-4).findLast((value) => value !== null);

function value(line, number, bytes) {
  if (number === undefined || number === null) return "–";
  return label(number, bytes) + (line.unit ? ` ${line.unit}` : "");
}

// The legend tells the newest values, or those of a moment.
function legend(chart, index) {
  const bytes = chart.dataset.scale === "bytes";
  lines(chart).forEach((line, at) => {
    const number = index === null ? newest(line) : data.values.get(line.series)?.[index];
    const text = value(line, number, bytes);
    const place = chart.querySelectorAll(".legend b")[at];
    if (place && place.textContent !== text) place.textContent = text;
  });
}

// ---- the moment that is pointed at ------------------------------------------------------------

// Index of the sample, and the chart that has the tooltip.
let shown = null;
let pointed = null;

function pointing() {
  const over = (event) => event.target.closest?.("[data-chart] .plot");
  for (const name of ["pointermove", "pointerdown"]) {
    document.addEventListener(name, (event) => {
      const plot = over(event);
      if (!plot || !data) { if (event.pointerType !== "touch" || name === "pointerdown") hide(); return; }
      const box = plot.getBoundingClientRect();
      const [from, to] = bounds();
      const at = from + ((event.clientX - box.left) / box.width) * (to - from);
      point(plot.closest("[data-chart]"), Math.round((at - data.first) / data.step));
    });
  }
  document.addEventListener("keydown", (event) => {
    const plot = over(event);
    if (!plot || !data) return;
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") return hide();
    if (move === undefined) return;
    event.preventDefault();
    point(plot.closest("[data-chart]"), (shown ?? data.count) + move, true);
  });
  document.addEventListener("focusout", (event) => { if (over(event)) hide(); });
  addEventListener("scroll", () => { if (pointed && !pointed.contains(document.activeElement)) hide(); }, { passive: true, capture: true });
}

function point(chart, index, said = false) {
  shown = Math.max(0, Math.min(data.count - 1, index));
  pointed = chart;
  for (const each of charts()) legend(each, shown);
  cross();
  if (said) say(chart);
}

function hide() {
  if (shown === null) return;
  shown = pointed = null;
  for (const mark of document.querySelectorAll("[data-chart] .cross, [data-chart] .tip")) mark.remove();
  for (const chart of charts()) legend(chart, null);
}

function cross() {
  const [from, to] = bounds();
  const share = (data.first + shown * data.step - from) / (to - from);
  for (const chart of charts()) {
    const plot = chart.querySelector(".plot");
    const mark = plot.querySelector(".cross") ?? plot.appendChild(Object.assign(document.createElement("div"), { className: "cross" }));
    mark.style.left = `${share * 100}%`;
    if (chart !== pointed) { plot.querySelector(".tip")?.remove(); continue; }
    const tip = plot.querySelector(".tip") ?? plot.appendChild(Object.assign(document.createElement("div"), { className: "tip" }));
    tip.replaceChildren(...texts(chart).map((text, index) => { const row = document.createElement("div"); if (!index) row.className = "dim"; row.textContent = text; return row; }));
    tip.style.left = share > 0.55 ? "auto" : `calc(${share * 100}% + 10px)`;
    tip.style.right = share > 0.55 ? `calc(${(1 - share) * 100}% + 10px)` : "auto";
  }
}

function texts(chart) {
  const bytes = chart.dataset.scale === "bytes";
  const at = new Date((data.first + shown * data.step) * 1000);
  return [at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }),
    ...lines(chart).map((line) => `${line.name}: ${value(line, data.values.get(line.series)?.[shown], bytes)}`)];
}

// For those who hear the page.
function say(chart) {
  let region = document.getElementById("chart-said");
  if (!region) {
    region = Object.assign(document.createElement("div"), { id: "chart-said", className: "sr" });
    region.setAttribute("aria-live", "polite");
    document.body.append(region);
  }
  region.textContent = texts(chart).join(", ");
}

// ---- numbers and words ------------------------------------------------------------------------

// The next round number above the highest, so that the axis has round labels.
function nice(highest, bytes) {
  if (highest <= 0) return bytes ? 1048576 : 1;
  const unit = bytes ? 1024 ** Math.floor(Math.log(highest) / Math.log(1024)) : 10 ** Math.floor(Math.log10(highest));
  const steps = bytes ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : [1.2, 2, 4, 6, 8, 12, 20];
  return steps.map((step) => step * unit).find((top) => top >= highest * 1.02) ?? highest * 1.25;
}

function label(number, bytes) {
  const [base, units] = bytes ? [1024, ["B", "KB", "MB", "GB", "TB"]] : [1000, ["", "k", "M", "G", "T"]];
  let at = 0;
  while (Math.abs(number) >= (bytes ? base : base * 10) && at < units.length - 1) { number /= base; at += 1; }
  const digits = number !== 0 && Math.abs(number) < 10 ? (Math.abs(number) < 1 ? 2 : 1) : at && Math.abs(number) < 100 ? 1 : 0;
  const text = Number(number.toFixed(digits)).toLocaleString(undefined, { maximumFractionDigits: digits });
  return units[at] ? `${text} ${units[at]}` : text;
}

function moment(at, span) {
  const date = new Date(at * 1000);
  if (span > 2 * 86400) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
}

const span = (text) => Object.assign(document.createElement("span"), { textContent: text });

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, word] of Object.entries(attributes)) element.setAttribute(key, word);
  return element;
}
