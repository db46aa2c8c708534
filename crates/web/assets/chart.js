// Hover over a chart: a line at the sample and its values. The chart itself is drawn by the server.
export function start() {
  document.addEventListener("pointermove", (event) => {
    const plot = event.target.closest?.(".chart .plot");
    if (!plot) return hide();
    point(plot, event.clientX);
  });
  document.addEventListener("pointerdown", (event) => {
    const plot = event.target.closest?.(".chart .plot");
    if (plot) point(plot, event.clientX);
  });
  addEventListener("scroll", hide, { passive: true, capture: true });
}

let shown = null;

function hide() {
  shown?.cross.remove();
  shown?.tip.remove();
  shown = null;
}

function point(plot, x) {
  const chart = plot.closest(".chart");
  const lines = JSON.parse(chart.dataset.lines ?? "[]");
  const slots = Number(chart.dataset.slots);
  const every = Number(chart.dataset.every);
  if (!lines.length) return;
  const box = plot.getBoundingClientRect();
  const at = Math.max(0, Math.min(1, (x - box.left) / box.width));
  const back = Math.round((1 - at) * (slots - 1));
  if (shown?.plot !== plot) {
    hide();
    shown = { plot, cross: make("div", "cross"), tip: make("div", "tip") };
    plot.append(shown.cross, shown.tip);
  }
  shown.cross.style.left = `${(1 - back / (slots - 1)) * 100}%`;
  const rows = lines.map(({ name, values, unit }) => {
    const value = values[values.length - 1 - back];
    return `${name}: ${value === undefined ? "–" : format(value)}${unit ? " " + unit : ""}`;
  });
  shown.tip.replaceChildren(...[ago(back * every), ...rows].map((text, index) => {
    const row = make("div", index ? "" : "dim");
    row.textContent = text;
    return row;
  }));
  shown.tip.style.left = at > 0.6 ? "auto" : `calc(${at * 100}% + 10px)`;
  shown.tip.style.right = at > 0.6 ? `calc(${(1 - at) * 100}% + 10px)` : "auto";
}

function make(tag, name) {
  const element = document.createElement(tag);
  element.className = name;
  element.setAttribute("data-keep", "");
  return element;
}

const format = (value) => {
  if (value >= 1e9) return (value / 1e9).toFixed(2) + " G";
  if (value >= 1e6) return (value / 1e6).toFixed(2) + " M";
  if (value >= 1e4) return (value / 1e3).toFixed(1) + " k";
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(value < 1 ? 2 : 1);
};

function ago(seconds) {
  if (seconds < 2) return "now";
  const minutes = Math.floor(seconds / 60);
  return minutes ? `${minutes} min ${seconds % 60} s ago` : `${seconds} s ago`;
}
