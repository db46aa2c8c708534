// The site behind the guard is down: a page says so in the visitor's language and tries again by itself.
import { must, until } from "../harness.mjs";

export default async function (tour) {
  tour.forgive(/status of 502/);
  const page = await tour.visitor({ baseURL: tour.guard });
  const answer = await page.goto("/tickets?show=7");
  must(answer.status() === 502, `502, not ${answer.status()}`);
  await page.getByRole("heading", { level: 1, name: "The site is not responding right now" }).waitFor();
  await tour.look(page, "guard-down");
  const pass = (await page.context().cookies()).find((cookie) => cookie.name === "wr_site");
  must(pass?.value.startsWith("eyJ"), "let in all the same");
  await page.evaluate(() => { window.stillHere = true; });
  await until("the page tries again by itself", () => page.evaluate(() => !window.stillHere).catch(() => false));
  await page.getByText("Your session is still active").waitFor();
  must(page.url() === `${tour.guard}/tickets?show=7`, "at the same address");

  const german = await tour.visitor({ baseURL: tour.guard, locale: "de-DE", javaScriptEnabled: false, viewport: { width: 390, height: 844 } });
  await german.goto("/");
  await german.getByRole("heading", { level: 1, name: "You are waiting in the queue" }).or(german.getByRole("heading", { level: 1, name: "Sie warten in der Warteschlange" })).waitFor();
}
