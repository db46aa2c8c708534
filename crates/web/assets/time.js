// Times on pages: the server writes UTC; here they become "3 min ago" with the local time on hover.
export function start() {
  tick();
  fields();
  setInterval(tick, 10000);
  document.addEventListener("live:shown", tick);
}

function tick() {
  for (const element of document.querySelectorAll("time[data-ms]")) {
    const ms = Number(element.dataset.ms);
    const text = STYLES[element.dataset.style]?.(ms) ?? relative(ms - Date.now());
    if (element.textContent !== text) element.textContent = text;
    if (!element.title) element.title = new Date(ms).toLocaleString();
  }
}

const STYLES = {
  clock: (ms) => new Date(ms).toLocaleTimeString(),
  hour: (ms) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }),
  day: (ms) => new Date(ms).toLocaleDateString([], { month: "short", day: "numeric" }),
};

// Fields for a local time (data-utc="NAME"): the hidden field NAME beside them has it in UTC, and is what is sent.
function fields() {
  for (const field of document.querySelectorAll("input[data-utc]")) {
    const hidden = field.form.elements[field.dataset.utc];
    const at = new Date(hidden.value);
    if (hidden.value && !isNaN(at)) field.value = new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
    field.addEventListener("change", () => { hidden.value = field.value ? new Date(field.value).toISOString() : ""; });
  }
}

function relative(difference) {
  const past = difference <= 0;
  const seconds = Math.round(Math.abs(difference) / 1000);
  let text;
  if (seconds < 5) return past ? "just now" : "now";
  if (seconds < 60) text = `${seconds} s`;
  else if (seconds < 3600) text = `${Math.round(seconds / 60)} min`;
  else if (seconds < 172800) text = `${Math.round(seconds / 3600)} h`;
  else text = `${Math.round(seconds / 86400)} days`;
  return past ? `${text} ago` : `in ${text}`;
}
