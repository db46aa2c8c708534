// The first page lives: numbers come by themselves, keys go to pages, the theme is kept.
import { must, until } from "../harness.mjs";

export default async function (tour) {
  const page = await tour.login();
  await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
  await until("the live stream is up", () => page.evaluate(() => document.documentElement.dataset.liveState === "on"));
  const before = await page.locator("[data-live=overview]").innerHTML();
  await until("the part changes by itself", async () => (await page.locator("[data-live=overview]").innerHTML()) !== before);
  await tour.look(page, "overview");

  await page.locator("body").press("?");
  await page.getByRole("dialog").getByText("Keyboard").waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("s");
  await page.waitForURL("**/store");

  await page.keyboard.press("t");
  const theme = await page.evaluate(() => document.documentElement.dataset.theme);
  await page.reload();
  must((await page.evaluate(() => document.documentElement.dataset.theme)) === theme, "the theme is kept");
}
