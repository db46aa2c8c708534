// What every scenario has in common: a real Chromium, pages that count their mistakes, a look at a
// page in four ways. A scenario is a file in scenarios/ with one exported function; it gets a Tour.
//
//   node run.mjs NAME      BASE and TOKEN in the environment say where the server is,
//                          GUARD where visitors of a guarded site come to, OTHER where a second instance is,
//                          SCREENSHOTS where pictures go
//
// A scenario fails when it throws, and also when any page of it wrote an error to the console, broke
// the content security policy, or showed something axe calls serious.
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const SIZES = { desktop: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };
const SCHEMES = ["light", "dark"];

export class Tour {
  problems = [];
  looks = 0;
  #forgiven = [];

  constructor(browser, name, { base, other, guard, token, shots }) {
    Object.assign(this, { browser, name, base, other, guard, token, shots });
    mkdirSync(shots, { recursive: true });
  }

  // A browser window of its own, without any login.
  async visitor(options = {}) {
    const context = await this.browser.newContext({ baseURL: this.base, viewport: SIZES.desktop, reducedMotion: "reduce", ...options });
    context.setDefaultTimeout(20_000);
    await context.addInitScript(() => {
      addEventListener("securitypolicyviolation", (event) => {
        console.error(`policy broken: ${event.violatedDirective} by ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
      });
    });
    context.on("page", (page) => this.#watch(page));
    return context.newPage();
  }

  // A window whose owner logged in with a token; the admin token unless told otherwise.
  async login(token = this.token, options = {}) {
    const page = await this.visitor(options);
    await page.goto("/login");
    await page.getByLabel("Token").fill(token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.waitForURL((url) => url.pathname !== "/login");
    return page;
  }

  // A new token of a role, made with the API.
  async tokenOf(role) {
    const made = await this.api("POST", "/api/v1/tokens", { role, name: `${role} of a test` });
    return made.secret;
  }

  // Calls the API as admin; an answer that is no 2xx is a failure.
  async api(method, path, body, token = this.token) {
    const answer = await fetch(this.base + path, {
      method,
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : null;
  }

  // Looks at a page at phone and desktop width, in light and dark: nothing serious for axe, nothing
  // sticks out sideways, a picture of each for people.
  async look(page, name) {
    const before = page.viewportSize();
    for (const [size, viewport] of Object.entries(SIZES)) {
      for (const scheme of SCHEMES) {
        await page.setViewportSize(viewport);
        await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
        await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
        const where = `${name}-${size}-${scheme}`;
        await page.screenshot({ path: join(this.shots, `${where}.png`), fullPage: true });
        const wide = await page.evaluate(() => document.scrollingElement.scrollWidth - innerWidth);
        if (wide > 0) this.problems.push(`${where}: ${wide} px stick out sideways`);
        for (const problem of await page.evaluate(measure, size)) this.problems.push(`${where}: ${problem}`);
        await this.#axe(page, where);
        this.looks += 1;
      }
    }
    await page.setViewportSize(before);
    await page.emulateMedia({ colorScheme: null });
  }

  // Looks at a page with a frame of ours in it: pictures of the whole, axe inside the frame.
  async lookInto(page, name) {
    const before = page.viewportSize();
    for (const [size, viewport] of Object.entries(SIZES)) {
      for (const scheme of SCHEMES) {
        await page.setViewportSize(viewport);
        await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
        await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
        const where = `${name}-${size}-${scheme}`;
        await page.screenshot({ path: join(this.shots, `${where}.png`) });
        for (const frame of page.frames().filter((frame) => [this.base, this.other].some((base) => frame.url().startsWith(base)))) {
          const wide = await frame.evaluate(() => document.scrollingElement.scrollWidth - innerWidth);
          if (wide > 0) this.problems.push(`${where}: ${wide} px stick out sideways`);
          await this.#axe(frame, where);
        }
        this.looks += 1;
      }
    }
    await page.setViewportSize(before);
    await page.emulateMedia({ colorScheme: null });
  }

  async #axe(page, where) {
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
    for (const { impact, id, help, nodes } of violations) {
      if (impact !== "serious" && impact !== "critical") continue;
      this.problems.push(`${where}: axe ${id} (${impact}): ${help}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
    }
  }

  // A console error that a scenario brings about on purpose.
  forgive(pattern) {
    this.#forgiven.push(pattern);
  }

  // An action reloads its page when it is done. A person who has gone on meanwhile gets where they wanted to; a
  // script that goes on in the same instant is interrupted by that reload, and goes once more.
  #persist(page) {
    for (const method of ["goto", "reload"]) {
      const go = page[method].bind(page);
      page[method] = (...args) =>
        go(...args).catch((error) => {
          if (!/interrupted by another navigation|ERR_ABORTED/.test(error.message)) throw error;
          return go(...args);
        });
    }
  }

  #watch(page) {
    this.#persist(page);
    page.on("console", (message) => {
      if (message.type() === "error") this.#note(page, `${message.text()} ${message.location()?.url ?? ""}`);
    });
    page.on("pageerror", (error) => this.#note(page, `uncaught ${error.stack ?? error}`));
  }

  #note(page, text) {
    if (this.#forgiven.some((pattern) => pattern.test(text))) return;
    this.problems.push(`${page.url()}: ${text}`);
  }
}

// What a person would stumble over, measured in the page: icons as large as a screen, buttons that lie on each other,
// that are too small to hit or cut off, text that is cut in the middle of a button.
function measure(size) {
  const problems = [];
  const name = (element) => (element.getAttribute("aria-label") || element.textContent.trim() || element.outerHTML).slice(0, 60);
  const dialog = [...document.querySelectorAll("dialog[open]")].pop();
  const root = dialog ?? document.body;
  const isSeen = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && !element.closest("[inert], .sr, .skip");
  for (const icon of document.querySelectorAll("svg[aria-hidden]")) {
    const { width, height } = icon.getBoundingClientRect();
    if (isSeen(icon) && !icon.closest(".backdrop, .wave, .plot, .tile, .chart, .meter") && Math.max(width, height) > 96) problems.push(`an icon of ${Math.round(width)} × ${Math.round(height)} px in ${icon.parentElement.className}`);
  }
  const targets = [...root.querySelectorAll("button, a.btn, .tabs a, input:not([type=hidden]), select, textarea")].filter(isSeen);
  const boxes = targets.map((element) => ({ element, box: element.getBoundingClientRect() })).filter(({ box }) => box.width && box.height);
  for (const { element, box } of boxes) {
    if (element.closest("[popover], .toasts, #new-rows")) continue;
    if (element.matches("button, a.btn") && (box.height < 24 || box.width < 24) && !element.closest(".ranges")) problems.push(`"${name(element)}" is ${Math.round(box.width)} × ${Math.round(box.height)} px, less than 24`);
    if (size === "phone" && !element.closest(".tabs, .table-wrap, .code, .ranges") && box.right > innerWidth + 1) problems.push(`"${name(element)}" is cut off at the right`);
    if (element.matches("button, a.btn") && element.scrollWidth > element.clientWidth + 2) problems.push(`the text of "${name(element)}" does not fit`);
  }
  for (let one = 0; one < boxes.length; one += 1) {
    for (let other = one + 1; other < boxes.length; other += 1) {
      const [a, b] = [boxes[one], boxes[other]];
      if (a.element.contains(b.element) || b.element.contains(a.element)) continue;
      if ([a, b].some(({ element }) => element.closest("[popover], .toasts, #new-rows, .save-bar, .top, .tabs, .side, .table-wrap, .search"))) continue;
      const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      if (across > 2 && down > 2) problems.push(`"${name(a.element)}" lies on "${name(b.element)}"`);
    }
  }
  return problems.slice(0, 5);
}

// Runs one scenario; answers what went wrong, an empty list when nothing did.
export async function run(name, scenario, settings) {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  });
  const tour = new Tour(browser, name, settings);
  try {
    await scenario(tour);
    if (tour.looks === 0) tour.problems.push("the scenario looked at nothing");
  } catch (error) {
    tour.problems.push(error.stack ?? String(error));
    for (const context of browser.contexts()) {
      for (const [index, page] of context.pages().entries()) {
        await page.screenshot({ path: join(settings.shots, `failed-${name}-${index}.png`) }).catch(() => {});
      }
    }
  } finally {
    await browser.close();
  }
  return tour.problems;
}

// Fails with a sentence.
export function must(condition, sentence) {
  if (!condition) throw new Error(sentence);
}

// Waits until something is so, asking again and again.
export async function until(what, condition, seconds = 30) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const found = await condition();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`waited ${seconds} s in vain: ${what}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}
