// The main states of the product as stored pictures: light, dark and on a phone. See pictures.mjs.
import { until } from "../harness.mjs";
import { SCALE, picture } from "../pictures.mjs";

const ALL = ["light", "dark", "phone"];

export default async function (tour) {
  // The policy of our pages forbids the style that brings the font along; other scenarios hold pages to it.
  const options = { bypassCSP: true, deviceScaleFactor: SCALE };
  const shot = (page, name, modes) => picture(tour, page, name, modes);
  const out = await tour.visitor(options);
  await out.goto("/login");
  await shot(out, "login", ALL);

  const page = await tour.login(tour.token, options);
  tour.forgive(/ERR_FAILED|net::|404/);
  const still = async (path, ready) => {
    await page.setViewportSize({ width: 1280, height: 800 });
    await page.goto(path);
    if (ready) await page.getByText(ready).first().waitFor();
    const pill = page.locator("[data-live-pause]");
    if (await pill.count()) await pill.first().click();
  };
  await still("/", "First steps");
  await shot(page, "overview-first", ALL);
  await still("/room", "No queues yet");
  await shot(page, "room-empty", ["light", "phone"]);
  await page.getByRole("button", { name: "New queue" }).click();
  await shot(page, "room-new-queue", ["light", "phone"]);

  // A paused queue with a line, so that nothing moves.
  await tour.api("POST", "/api/v1/admin/queues", { id: "summer-tour", name: "Summer tour", target_url: "https://tickets.example/", max_active: 50, admission: { count: 500, per_seconds: 60 }, brand_color: "#0a7d5c" });
  await tour.api("POST", "/api/v1/admin/queues/summer-tour/pause");
  for (let count = 0; count < 5; count += 1) {
    await fetch(`${tour.base}/api/v1/queues/summer-tour/enqueue`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  }
  await still("/room", "Summer tour");
  await shot(page, "room", ALL);
  await still("/room/summer-tour", "Next to be admitted");
  await shot(page, "queue", ALL);
  await page.getByRole("button", { name: "QR code" }).click();
  await shot(page, "queue-qr", ["light"]);
  await still("/room/summer-tour?view=waiting", "Waiting");
  await shot(page, "queue-waiting", ["phone"]);
  await still("/room/summer-tour?view=settings", "Look of the waiting page");
  await page.frameLocator("iframe.preview").getByText("You are waiting in the queue").waitFor();
  await shot(page, "queue-settings", ALL);
  const { items: [first] } = await tour.api("GET", "/api/v1/admin/queues/summer-tour/positions");
  await still(`/room/summer-tour?view=find&text=${first.position_id}`, "Why this visitor waits");
  await shot(page, "queue-find", ["light", "phone"]);
  await still("/room/summer-tour?view=statistics", "The last 48 hours");
  await shot(page, "queue-statistics", ["light", "phone"]);

  const visitor = await tour.visitor(options);
  await visitor.goto("/_wr/summer-tour");
  await visitor.getByRole("heading", { level: 1, name: "The queue is paused" }).waitFor();
  await shot(visitor, "waiting-paused", ALL);
  await visitor.close();

  // Jobs: one of each state.
  await still("/jobs", "No jobs yet");
  await shot(page, "jobs-empty", ["light"]);
  const worker = await tour.tokenOf("worker");
  const dispatch = (body) => tour.api("POST", "/api/v1/jobs", body);
  await dispatch({ id: "mail-one", type: "mail", payload: { to: "ann" }, retry: { attempts: 0 } });
  await dispatch({ id: "mail-two", type: "mail", payload: { to: "bob" } });
  await dispatch({ id: "report-later", type: "report", delay_ms: 3_600_000 });
  const { items: [lease] } = await tour.api("POST", "/api/v1/jobs/claim", { worker_id: "press-1", types: ["mail"], wait_ms: 5000 }, worker);
  await tour.api("POST", "/api/v1/jobs/mail-one/fail", { worker_id: "press-1", token: lease.token, error: { name: "Timeout", message: "the printer did not answer" } }, worker);
  await tour.api("PUT", "/api/v1/jobs/schedules/nightly", { cron: "30 3 * * *", timezone: "Europe/Berlin", type: "clean-up" });
  await still("/jobs", "report");
  await shot(page, "jobs", ["light", "phone"]);
  await still("/jobs/dead", "the printer did not answer");
  await shot(page, "jobs-dead", ["light", "dark", "phone"]);
  await still("/jobs/job/mail-one", "Timeline");
  await shot(page, "job-dead", ["light"]);
  await still("/jobs/schedules", "nightly");
  await shot(page, "jobs-schedules", ["phone"]);

  // The resolver: nothing asked yet, so that no figure moves.
  await still("/dns", "Three things to decide");
  await shot(page, "dns-first", ALL);
  await tour.api("PUT", "/api/v1/dns/groups/kids", { name: "Kids", safe_search: ["google", "youtube"], services: [{ id: "tiktok" }] });
  await tour.api("PUT", "/api/v1/dns/clients/tablet", { name: "Ann's tablet", addresses: ["192.168.1.20"], group: "kids" });
  await tour.api("POST", "/api/v1/dns/records", { name: "printer.home.arpa", type: "A", value: "192.168.1.9" });
  await tour.api("POST", "/api/v1/dns/rules", { rule: "||ads.example^", group: "kids" });
  await still("/dns/lists", "Choice");
  await shot(page, "dns-lists", ["light", "phone"]);
  await still("/dns/groups/kids", "Kids");
  await shot(page, "dns-group", ["light", "phone"]);
  await still("/dns/clients", "Ann's tablet");
  await shot(page, "dns-clients", ["dark", "phone"]);
  await still("/dns/records", "printer.home.arpa");
  await shot(page, "dns-records", ["light"]);

  // The desk: a limit and a user.
  await still("/desk/users", "No users yet");
  await shot(page, "desk-users-empty", ["light"]);
  await tour.api("PUT", "/api/v1/ratelimit/policies/search", { algorithm: "fixed", limit: 100, window_seconds: 60, shadow: true });
  await tour.api("POST", "/api/v1/users/anna/sessions", { device_id: "phone" });
  await still("/desk/limits", "search");
  await shot(page, "desk-limits", ALL);
  await still("/desk/limits/search", "search");
  await shot(page, "desk-policy", ["light"]);
  await still("/desk/users", "anna");
  await shot(page, "desk-users", ["light", "phone"]);

  // The installation: a key of the store, the trail, a webhook.
  await still("/store?pattern=queue:summer-tour:meta", "queue:summer-tour:meta");
  // Below the fold is what was slow, which differs.
  await shot(page, "store", ["phone"]);
  await still("/store/key?key=queue%3Asummer-tour%3Ameta", "Field");
  await shot(page, "store-key", ["light", "phone"]);
  await still("/webhooks", "No webhooks yet");
  await shot(page, "webhooks-empty", ["light"]);
  await tour.api("POST", "/api/v1/webhooks", { name: "on call", url: "https://hooks.example.org/tidegate", events: ["jobs.dead_letter"] });
  await still("/webhooks", "on call");
  await shot(page, "webhooks", ALL);
  await still("/audit", "webhook.create");
  await shot(page, "audit", ALL);

  await still("/settings", "Settings");
  await shot(page, "settings", ["light"]);
  await still("/docs", "Docs");
  await shot(page, "docs", ["light", "phone"]);
  await page.goto("/room/nope");
  await shot(page, "not-found", ["light"]);

  // The stream is cut.
  await page.route("**/api/v1/live**", (route) => route.abort());
  await page.goto("/room");
  await page.getByText("The live connection is down").waitFor({ state: "visible" });
  await until("the pill says so", async () => (await page.locator("[data-live-word]").first().innerText()) === "Offline");
  await shot(page, "offline", ["light", "phone"]);
}
