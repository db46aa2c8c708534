// The key browser: find by pattern and type, see values of every type, remove one.
import { must } from "../harness.mjs";

export default async function (tour) {
  await tour.api("POST", "/api/v1/admin/queues", { id: "summer-tour" });
  await tour.api("POST", "/api/v1/jobs", { type: "email.send", payload: { to: "ann@mail.example" } });
  for (let n = 0; n < 3; n += 1) {
    await fetch(`${tour.base}/api/v1/queues/summer-tour/enqueue`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  }
  const page = await tour.login();
  await page.goto("/store");
  await page.getByRole("heading", { name: "Slow commands" }).waitFor();
  await tour.look(page, "store");

  await page.getByLabel("Find keys").fill("queue:*");
  await page.getByRole("button", { name: "Find", exact: true }).click();
  const link = page.locator("td.key a", { hasText: "summer-tour" }).first();
  await link.waitFor();
  await page.getByLabel("Type", { exact: true }).selectOption("hash");
  await page.waitForURL(/type=hash/);
  await tour.look(page, "store-found");
  await page.locator("td.key a").first().click();
  await page.getByRole("heading", { name: "Value" }).waitFor();
  await tour.look(page, "store-key");

  await page.goto("/store?pattern=*jobs:data:*");
  await page.locator("td.key a").first().click();
  await page.getByText("ann@mail.example").waitFor();
  await page.getByRole("button", { name: "Remove" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await page.waitForURL("**/store");
  await page.getByText("Key removed").waitFor();

  const viewer = await tour.login(await tour.tokenOf("viewer"));
  await viewer.goto("/store?type=hash");
  await viewer.locator("td.key a").first().click();
  await viewer.getByRole("heading", { name: "Value" }).waitFor();
  must((await viewer.getByRole("button", { name: "Remove" }).count()) === 0, "a viewer removes nothing");
}
