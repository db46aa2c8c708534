// Keys: "/" searches, "g" then a letter goes to a page, "j" and "k" walk through the rows of a table and Enter opens one,
// "?" shows this list, "t" switches the theme.
export function start() {
  let pending = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable], [data-chart]") || document.querySelector("dialog[open]")) return;
    const key = event.key;
    if (pending && Date.now() - pending < 1500) {
      pending = 0;
      const link = document.querySelector(`[data-go="${CSS.escape(key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (key === "g") pending = Date.now();
    else if (key === "j" || key === "k") walk(key === "j" ? 1 : -1);
    else if (key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    } else if (key === "?") document.getElementById("keys")?.showModal();
    else if (key === "t") document.querySelector("[data-theme-switch]")?.click();
  });
}

// The row's own link takes the focus, so Enter opens it and a screen reader says it.
function walk(by) {
  const links = [...document.querySelectorAll("main .table tbody tr, main .list > li")]
    .map((row) => row.querySelector("a.row, a[href], summary, button")).filter((link) => link && link.offsetParent);
  if (!links.length) return;
  const here = links.findIndex((link) => link.closest("tr, li")?.contains(document.activeElement));
  const next = links[here < 0 ? (by > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, here + by))];
  next.focus();
  next.closest("tr, li").scrollIntoView({ block: "nearest" });
}
