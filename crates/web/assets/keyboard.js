// Keys: "/" searches, "g" then a letter goes to a page, "?" shows this list, "t" switches the theme.
export function start() {
  let pending = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]") || document.querySelector("dialog[open]")) return;
    const key = event.key;
    if (pending && Date.now() - pending < 1500) {
      pending = 0;
      const link = document.querySelector(`[data-go="${CSS.escape(key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (key === "g") pending = Date.now();
    else if (key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    } else if (key === "?") document.getElementById("keys")?.showModal();
    else if (key === "t") document.querySelector("[data-theme-switch]")?.click();
  });
}
