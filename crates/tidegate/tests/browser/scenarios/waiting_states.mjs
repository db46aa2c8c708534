// Every other thing a visitor can meet: full, closed, missed, lost, withdrawn, left, no cookies, wrong address.
import { must, until } from "../harness.mjs";
import { Line } from "../room.mjs";

export default async function (tour) {
  // Pages that say 503 or 404, and polls that say 410, are what this is about.
  tour.forgive(/status of (404|410|503)/);
  const line = await Line.make(tour, "states", { name: "Summer Festival 2027 – Early Bird Tickets", max_queue_size: 1 });
  const title = (page, name) => page.getByRole("heading", { level: 1, name }).waitFor();

  const page = await tour.visitor();
  await page.goto("/_wr/states?return_to=%2Fdocs");
  await title(page, "You are waiting in the queue");
  const full = await tour.visitor();
  await full.goto("/_wr/states");
  await title(full, "The queue is full");
  await tour.look(full, "waiting-full");
  // It tries again by itself, and would take the position that others here are to have.
  await full.context().close();

  await page.getByText("Leave the queue").first().click();
  await tour.look(page, "waiting-leave");
  await page.getByRole("button", { name: "Leave the queue" }).click();
  await title(page, "You left the queue");
  await tour.look(page, "waiting-left");
  await page.getByRole("button", { name: "Join the queue again" }).click();
  await title(page, "You are waiting in the queue");

  await line.act("maintenance", { confirm: "states" });
  await title(page, "Closed for maintenance");
  await page.getByText("You keep your position").first().waitFor();
  await tour.look(page, "waiting-closed");
  await line.act("resume");
  await title(page, "You are waiting in the queue");

  // Taken away by an operator.
  const { items: positions } = await tour.api("GET", `${line.path}/positions`);
  await tour.api("DELETE", `${line.path}/positions/${positions[0].position_id}`);
  await title(page, "Your position was revoked");
  await tour.look(page, "waiting-withdrawn");

  // The turn comes while nobody looks: the tab calls and does not use it up.
  await page.getByRole("button", { name: "Join the queue again" }).click();
  await title(page, "You are waiting in the queue");
  await page.evaluate(() => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => window.away !== false });
  });
  await line.change({ max_active: 2 });
  await title(page, "It is your turn");
  await until("the tab calls", async () => /^[●○]/.test(await page.title()));
  must(new URL(page.url()).pathname.startsWith("/_wr/"), "stays until somebody looks");
  await tour.look(page, "waiting-turn");
  await page.evaluate(() => { window.away = false; document.dispatchEvent(new Event("visibilitychange")); });
  await page.waitForURL("**/docs");

  // A browser that did not send the cookie back is told, and can wait all the same.
  const bare = await tour.visitor();
  await bare.goto("/_wr/states/wait?probe=1&return_to=%2Fdocs");
  await title(bare, "Please allow cookies");
  await tour.look(bare, "waiting-cookies");
  await bare.getByRole("button", { name: "Wait without cookies" }).click();
  await title(bare, "You are waiting in the queue");
  must((await bare.context().cookies()).length === 0, "without any cookie");

  // A line whose end can be told.
  const slow = await Line.make(tour, "slow", { name: "Museum Night", max_active: 0, admission: { count: 20, per_seconds: 60, burst: 1 } });
  await slow.joinMany(45);
  const patient = await tour.visitor();
  await patient.goto("/_wr/slow");
  await title(patient, "You are waiting in the queue");
  await patient.locator("[data-wait]", { hasText: /\d+ to \d+ minutes|About \d+ minutes/ }).waitFor();
  await tour.look(patient, "waiting-estimate");

  const nowhere = await tour.visitor();
  await nowhere.goto("/_wr/nothing-here");
  await title(nowhere, "This queue does not exist");
  await tour.look(nowhere, "waiting-unknown");
}
