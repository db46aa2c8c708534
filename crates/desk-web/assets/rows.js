// A windowed list: as many rows in the document as fit on the screen, however long the list is. Rows have one
// height; the container is as tall as all of them.

export class Rows {
  #first = 0;
  #last = -1;
  #nodes = new Map();
  #frame = 0;

  // `make(item, index)` builds a row; `near(index)` says that the end of what is loaded is close.
  constructor(scroller, { height, make, near }) {
    Object.assign(this, { scroller, height, make, near, items: [], total: 0 });
    this.pad = document.createElement("div");
    this.pad.className = "pad";
    this.pad.setAttribute("role", "list");
    scroller.append(this.pad);
    scroller.addEventListener("scroll", () => this.#soon(), { passive: true });
    new ResizeObserver(() => this.#soon()).observe(scroller);
  }

  // Shows these items; `total` may be larger than what is loaded.
  set(items, total = items.length) {
    this.items = items;
    this.total = Math.max(items.length, total);
    this.pad.style.height = `${this.total * this.height}px`;
    this.pad.setAttribute("aria-busy", String(this.total > items.length));
    this.#nodes.forEach((entry) => { entry.stale = true; });
    this.draw();
  }

  #soon() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.draw();
    });
  }

  draw() {
    const top = this.scroller.scrollTop, seen = Math.ceil(this.scroller.clientHeight / this.height);
    this.#first = Math.max(0, Math.floor(top / this.height) - 6);
    this.#last = Math.min(this.items.length - 1, this.#first + seen + 12);
    const shown = this.items.slice(this.#first, this.#last + 1), wanted = new Set(shown.map((item) => item.id));
    for (const [id, { node }] of this.#nodes) {
      if (wanted.has(id)) continue;
      node.remove();
      this.#nodes.delete(id);
    }
    // The document has rows in the order of the list, for the keyboard and for screen readers.
    let before = null;
    shown.forEach((item, n) => {
      const at = this.#first + n;
      let entry = this.#nodes.get(item.id);
      if (!entry || entry.stale) {
        const node = this.make(item, at);
        node.setAttribute("role", "listitem");
        const had = entry?.node.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
        entry?.node.replaceWith(node);
        if (had) node.querySelector(`[data-focus="${had}"]`)?.focus({ preventScroll: true });
        entry = { node, stale: false };
        this.#nodes.set(item.id, entry);
      }
      const { node } = entry;
      if (node.parentNode !== this.pad || node.previousElementSibling !== before) {
        const isFocused = node.contains(document.activeElement) ? document.activeElement : null;
        this.pad.insertBefore(node, before ? before.nextElementSibling : this.pad.firstElementChild);
        isFocused?.focus({ preventScroll: true });
      }
      node.style.transform = `translateY(${at * this.height}px)`;
      node.setAttribute("aria-setsize", String(this.total));
      node.setAttribute("aria-posinset", String(at + 1));
      before = node;
    });
    if (this.total > this.items.length && this.#last >= this.items.length - 30) this.near();
  }

  // Brings a row into view.
  reveal(index) {
    const top = index * this.height, view = this.scroller;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + this.height > view.scrollTop + view.clientHeight) view.scrollTop = top + this.height - view.clientHeight;
    this.draw();
  }

  focus(id) {
    this.#nodes.get(id)?.node.querySelector('[data-focus="open"]')?.focus({ preventScroll: true });
  }
}
