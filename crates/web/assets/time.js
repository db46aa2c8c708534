// Times on pages: the server writes UTC; here they become "3 min ago" with the local time on hover.
export function start() {
  tick();
  setInterval(tick, 10000);
  document.addEventListener("live:shown", tick);
}

function tick() {
  for (const element of document.querySelectorAll("time[data-ms]")) {
    const ms = Number(element.dataset.ms);
    const text = element.dataset.style === "clock" ? clock(ms) : relative(ms - Date.now());
    if (element.textContent !== text) element.textContent = text;
    if (!element.title) element.title = new Date(ms).toLocaleString();
  }
}

const clock = (ms) => new Date(ms).toLocaleTimeString();

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
