// A queue from its making to its end: the line live, every act with its confirmation, the trail.
import { must, until } from "../harness.mjs";

const join = (tour, count) => Promise.all([...Array(count)].map(() => fetch(`${tour.base}/api/v1/queues/summer-tour/enqueue`, {
  method: "POST", headers: { "content-type": "application/json" }, body: "{}",
})));

export default async function (tour) {
  const page = await tour.login();
  await page.goto("/room");
  await page.getByText("No queues yet").waitFor();
  await tour.look(page, "room-empty");

  // An admin makes a queue.
  await page.getByRole("button", { name: "New queue" }).click();
  const dialog = page.getByRole("dialog", { name: "New queue" });
  await dialog.locator("[name=id]").fill("summer-tour");
  await dialog.locator("[name=name]").fill("Summer tour");
  await dialog.getByLabel("Target URL").fill("https://tickets.example/");
  await dialog.getByLabel("Maximum active").fill("5");
  await tour.look(page, "room-new-queue");
  await dialog.getByRole("button", { name: "Create" }).click();
  await page.waitForURL("**/room/summer-tour");
  await page.getByRole("heading", { level: 1, name: "Summer tour" }).waitFor();

  // Pause with confirm, so that the line stands while we look.
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  must((await tour.api("GET", "/api/v1/admin/queues/summer-tour")).status === "active", "a refused confirmation does nothing");
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Resume" }).waitFor();
  await join(tour, 30);
  await page.locator(".dots").getByRole("img", { name: /30 waiting/ }).waitFor();
  await tour.look(page, "queue-paused");

  // Admit by hand counts the limit of five.
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("button", { name: "Pause" }).waitFor();
  await page.getByRole("button", { name: "Admit …" }).click();
  const admit = page.getByRole("dialog", { name: "Admit visitors" });
  await admit.getByLabel("Number of visitors").fill("20");
  await tour.look(page, "queue-admit");
  await admit.getByRole("button", { name: "Admit" }).click();
  await until("five are let in", async () => (await tour.api("GET", "/api/v1/admin/queues/summer-tour/stats")).total_admitted_now === 5);

  await page.getByRole("button", { name: "Rate …" }).click();
  const rate = page.getByRole("dialog", { name: "Change the rate" });
  await rate.getByLabel("Rate").fill("seven");
  await rate.getByRole("button", { name: "Change" }).click();
  await rate.getByRole("alert").getByText("Write a rate such as 500/min").waitFor();
  await rate.getByLabel("Rate").fill("7/min");
  await rate.getByRole("button", { name: "Change" }).click();
  await page.getByText("summer-tour · 7/min").waitFor();
  await page.getByRole("button", { name: "Message …" }).click();
  const message = page.getByRole("dialog", { name: "Message to waiting visitors" });
  await message.getByLabel("Message").fill("<b>Doors</b> open at eight");
  await message.getByRole("button", { name: "Send" }).click();
  await page.getByText("<b>Doors</b> open at eight").waitFor();
  await tour.look(page, "queue-live");

  // The other views, each living.
  const tab = (name) => page.getByRole("navigation", { name: "Views of the queue" }).getByRole("link", { name });
  await tab("Waiting").click();
  const rows = page.locator("tbody tr");
  await until("25 wait", async () => (await rows.count()) === 25);
  await tour.look(page, "queue-line");
  await rows.first().getByRole("button", { name: /Revoke position/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await until("24 wait", async () => (await rows.count()) === 24);
  await tab("Admitted").click();
  await until("five are at the door", async () => (await rows.count()) === 5);
  await tour.look(page, "queue-door");
  await tab("Sessions").click();
  await page.getByText("No active sessions").waitFor();
  const [visitor] = await join(tour, 1);
  must(visitor.status === 201, `joining answers ${visitor.status}`);
  await tab("Events").click();
  await page.getByText("enqueued").first().waitFor();
  await tour.look(page, "queue-events");
  await tab("Settings").click();
  // All settings, in the units of people; the preview shows what is typed before it is saved.
  const form = page.locator("#queue-settings");
  await form.locator("[name=name]").fill("Summer tour 2027");
  await form.locator("[name=brand_color]").fill("#b00020");
  await page.locator("[data-preview-name=message]").fill("Doors open at nine");
  const preview = page.frameLocator("iframe.preview");
  await preview.getByText("Summer tour 2027").waitFor();
  await preview.getByText("Doors open at nine").waitFor();
  must((await tour.api("GET", "/api/v1/admin/queues/summer-tour")).name === "Summer tour", "nothing is saved yet");
  tour.forgive(/400 \(Bad Request\)/);
  const problem = async (label, value, text) => {
    const field = form.locator(`[name=${label}]`);
    const before = await field.inputValue();
    await field.fill(value);
    await page.getByRole("button", { name: "Save" }).click();
    await form.getByRole("alert").getByText(text).waitFor();
    must((await field.getAttribute("aria-invalid")) === "true", `${label} is marked`);
    if (value === "soon") await tour.look(page, "queue-settings-error");
    await field.fill(before);
  };
  await problem("hold_seconds", "soon", "Write a time such as 30s, 5m or 2h");
  await problem("hold_seconds", "1s", /From 60 to/);
  await problem("admission", "fast", "Write a rate such as 500/min");
  await problem("target_url", "ftp://x", /http/);
  await form.locator("[name=hold_seconds]").fill("10m");
  await form.locator("[name=admission]").fill("500/min");
  await form.locator("[name=session_max_seconds]").fill("1h 30m");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("heading", { level: 1, name: "Summer tour 2027" }).waitFor();
  const saved = await tour.api("GET", "/api/v1/admin/queues/summer-tour");
  must(saved.hold_seconds === 600 && saved.session_max_seconds === 5400, `times are seconds: ${JSON.stringify(saved)}`);
  must(saved.admission.count === 500 && saved.admission.per_seconds === 60 && saved.brand_color === "#b00020", "rate and colour");
  must((await form.locator("[name=hold_seconds]").inputValue()) === "10m", "and shown as typed");
  await tour.look(page, "queue-settings");
  await form.locator("[name=brand_color]").fill("");
  await page.getByRole("button", { name: "Save" }).click();
  await until("a field can be emptied", async () => (await tour.api("GET", "/api/v1/admin/queues/summer-tour")).brand_color === null);

  // The way to the waiting page: open, copy, QR code.
  const [opened] = await Promise.all([page.context().waitForEvent("page"), page.getByRole("link", { name: "Open waiting page" }).click()]);
  await opened.waitForURL("**/_wr/summer-tour/wait**");
  await opened.close();
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.getByRole("button", { name: "Copy link" }).first().click();
  await page.getByRole("status").getByText("Copied").waitFor();
  must((await page.evaluate(() => navigator.clipboard.readText())) === `${tour.base}/_wr/summer-tour`, "the address is copied");
  await page.getByRole("button", { name: "QR code" }).click();
  await page.getByRole("img", { name: `QR code of ${tour.base}/_wr/summer-tour` }).waitFor();
  await tour.look(page, "queue-qr");
  await page.getByRole("dialog").getByRole("button", { name: "Close" }).click();

  // Why somebody waits, and numbers to take along.
  await tour.api("POST", "/api/v1/admin/queues/summer-tour/pause");
  const { items: [waiting] } = await tour.api("GET", "/api/v1/admin/queues/summer-tour/positions");
  await tab("Find a visitor").click();
  await page.getByLabel(/Position, session, user id/).fill(waiting.position_id);
  await page.getByRole("button", { name: "Find", exact: true }).click();
  await page.getByText("the queue is paused").waitFor();
  await tour.look(page, "queue-find");
  await tab("Statistics").click();
  await page.getByText("The last 48 hours").waitFor();
  await tour.look(page, "queue-statistics");
  await page.getByRole("link", { name: "By day" }).click();
  await page.getByText("The last 31 days").waitFor();
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "CSV" }).click()]);
  must(file.suggestedFilename() === "summer-tour-by-day.csv", `the export is ${file.suggestedFilename()}`);
  await page.goto("/room");
  await page.getByRole("link", { name: "Summer tour 2027" }).waitFor();
  await tour.look(page, "room");

  // Who may only look sees no acts.
  const viewer = await tour.login(await tour.tokenOf("viewer"));
  await viewer.goto("/room/summer-tour");
  await viewer.getByText("Next to be admitted").waitFor();
  must((await viewer.getByRole("button", { name: /Admit|Pause|Rate|Message/ }).count()) === 0, "a viewer has no acts");

  // The end needs its name typed.
  await page.goto("/room/summer-tour?view=settings");
  await page.getByRole("button", { name: "Delete the queue" }).click();
  const sure = page.getByRole("dialog");
  must(await sure.getByRole("button", { name: "Delete" }).isDisabled(), "the name is missing");
  await sure.getByLabel(/to confirm/).fill("summer-tour");
  await sure.getByRole("button", { name: "Delete" }).click();
  await page.waitForURL("**/room");
  await page.getByText("No queues yet").waitFor();
  await viewer.getByText("Queue not found").waitFor();

  const { items: entries } = await tour.api("GET", "/api/v1/audit");
  const done = entries.map((entry) => entry.action);
  for (const act of ["pause", "resume", "admit", "rate", "message", "delete"]) {
    must(done.some((action) => action.includes(act)), `${act} is in the trail: ${done}`);
  }
}
