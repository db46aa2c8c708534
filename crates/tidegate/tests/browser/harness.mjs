// What every scenario has in common: a real Chromium, pages that count their mistakes, a look at a
// page in four ways. A scenario is a file in scenarios/ with one exported function; it gets a Tour.
//
//   node run.mjs NAME      BASE and TOKEN in the environment say where the server is,
//                          GUARD where visitors of a guarded site come to, SCREENSHOTS where pictures go
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

  constructor(browser, name, { base, guard, token, shots }) {
    Object.assign(this, { browser, name, base, guard, token, shots });
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
        await this.#axe(page, where);
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

  #watch(page) {
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
