// Nothing jumps under a finger: live lists at phone width while rows come and go. Rows that would move wait for a
// tap; what happens after one's own action is shown at once.
import { must, until } from "../harness.mjs";

// The sum of layout shifts that nobody caused, while something happens.
async function shifts(page, during) {
  await page.evaluate(() => {
    window.shifted = 0;
    window.watching = new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
    });
    window.watching.observe({ type: "layout-shift", buffered: false });
  });
  await during();
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  return page.evaluate(() => { window.watching.disconnect(); return window.shifted; });
}

const MOST = 0.05;

export default async function (tour) {
  const worker = await tour.tokenOf("worker");
  let made = 0;
  const finish = async (count) => {
    for (let at = 0; at < count; at += 1) {
      made += 1;
      await tour.api("POST", "/api/v1/jobs", { id: `mail-${made}`, type: "mail", payload: { number: made } });
      const { items: [lease] } = await tour.api("POST", "/api/v1/jobs/claim", { worker_id: "press-1", types: ["mail"], wait_ms: 5000 }, worker);
      await tour.api("POST", `/api/v1/jobs/mail-${made}/complete`, { worker_id: "press-1", token: lease.token, result: {} }, worker);
    }
  };
  const join = async (count) => {
    for (let at = 0; at < count; at += 1) {
      await fetch(`${tour.base}/api/v1/queues/summer-tour/enqueue`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
    }
  };
  await finish(12);
  await tour.api("POST", "/api/v1/admin/queues", { id: "summer-tour", max_active: 100000, admission: { count: 0, per_seconds: 1 } });
  await join(20);

  const page = await tour.login(tour.token, { viewport: { width: 390, height: 844 } });
  const live = () => until("the stream is up", () => page.evaluate(() => document.documentElement.dataset.liveState === "on"));
  const rows = page.locator("tbody tr");

  // A list of jobs: the new ones wait for a tap.
  await page.goto("/jobs/finished");
  await live();
  const first = await rows.first().getAttribute("data-key");
  const button = page.getByRole("button", { name: "Show new rows" });
  let sum = await shifts(page, async () => { await finish(8); await button.waitFor(); });
  must(sum <= MOST, `finished jobs shift by ${sum}`);
  must((await rows.first().getAttribute("data-key")) === first, "the rows stand still");
  await tour.look(page, "steady-jobs");
  await button.click();
  await until("the new rows are there", async () => (await rows.first().getAttribute("data-key")) !== first);
  must(await button.isHidden(), "the button is gone");

  // Events and positions of a queue.
  for (const view of ["events", "waiting", "live"]) {
    await page.goto(`/room/summer-tour?view=${view}`);
    await live();
    sum = await shifts(page, async () => {
      await join(5);
      await tour.api("POST", "/api/v1/admin/queues/summer-tour/admit", { count: 3 });
      const waiting = async () => (await tour.api("GET", "/api/v1/admin/queues/summer-tour")).waiting;
      const now = await waiting();
      if (view !== "live") await button.waitFor();
      else await until("the tile follows", async () => (await page.locator(".tile .value").first().innerText()) === String(now));
    });
    must(sum <= MOST, `${view} of a queue shifts by ${sum}`);
  }

  // One's own action shows its outcome at once, although rows move.
  await page.goto("/room/summer-tour?view=waiting");
  await live();
  const gone = await rows.first().getAttribute("data-key");
  await rows.first().getByRole("button", { name: /Revoke position/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await until("the revoked position is gone", async () => (await rows.first().getAttribute("data-key")) !== gone);
}
