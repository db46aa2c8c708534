// The frame around every page: the range of charts and the values of a moment, finding things, undoing, the state of the
// live connection, errors.
import { must, until } from "../harness.mjs";

export default async function (tour) {
  await tour.api("POST", "/api/v1/admin/queues", { id: "spring-sale" });
  const page = await tour.login();

  // All charts of a page have one axis, and a range that is picked.
  await until("lines are drawn", async () => (await page.locator("[data-chart] path.line").count()) > 2);
  const axes = () => page.locator("[data-chart] .x").evaluateAll((all) => all.map((axis) => axis.textContent));
  must(new Set(await axes()).size === 1, `one axis on the page, not ${await axes()}`);
  await page.getByRole("button", { name: "24 h", exact: true }).click();
  must(page.url().endsWith("#range=24h"), "the range is in the address");
  await until("the axis follows", async () => new Set(await axes()).size === 1);
  await page.getByRole("button", { name: "15 min", exact: true }).click();
  await page.getByRole("button", { name: "From–to" }).click();
  await page.getByLabel("From", { exact: true }).fill("2001-01-01T00:00");
  await page.getByRole("button", { name: "Show", exact: true }).click();
  await page.getByText("The history goes back 90 days.").waitFor();
  await tour.look(page, "range");
  await page.keyboard.press("Escape");

  // The values of a moment: by keyboard, with the same moment in all charts.
  await page.locator("[data-chart] .plot").first().focus();
  await page.keyboard.press("End");
  await page.keyboard.press("ArrowLeft");
  await page.locator("[data-chart] .tip").waitFor();
  must((await page.locator("[data-chart] .cross").count()) === (await page.locator("[data-chart]").count()), "a mark in every chart");
  await page.keyboard.press("Escape");

  // Finding things.
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox").fill("spring");
  await page.getByRole("option", { name: /^queue spring-sale/ }).waitFor();
  await tour.look(page, "palette");
  await page.getByRole("option", { name: /^queue spring-sale/ }).click();
  await page.waitForURL("**/room/spring-sale");

  // What can be undone offers it, above everything else on the page.
  await page.goto("/room");
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  const question = page.getByRole("dialog");
  must((await question.locator(".danger").count()) === 0, "a question about a pause is calm");
  await question.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Undo" }).click();
  await until("it is undone", async () => (await tour.api("GET", "/api/v1/admin/queues/spring-sale")).status === "active");

  // The pill says what the connection is, where there is one.
  const pill = page.locator("[data-live-pause]");
  await until("the pill says live", async () => (await pill.innerText()) === "Live");
  await pill.click();
  must((await pill.innerText()) === "Paused", "updates are paused");
  await page.goto("/settings");
  must((await pill.count()) === 0, "a page that is not live has no pill");

  // An error stays in the frame.
  tour.forgive(/404 \(Not Found\)/);
  await page.goto("/room/nope");
  await page.getByRole("heading", { level: 1, name: /404/ }).waitFor();
  must((await page.locator("nav.side").count()) === 1, "the menu is still there");
  await tour.look(page, "not-found");

  // The documents are found by their words, and print without the frame.
  await page.goto("/docs/search?text=admission+window");
  must((await page.locator(".docs-hits a").count()) > 0, "something is found");
  await tour.look(page, "docs-search");
  await page.goto("/docs/room");
  await page.emulateMedia({ media: "print" });
  must(!(await page.locator("nav.side").isVisible()) && !(await page.locator(".docs-nav").isVisible()), "paper has no menu");
  await page.emulateMedia({ media: "screen" });
}
