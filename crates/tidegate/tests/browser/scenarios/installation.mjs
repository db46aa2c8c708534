// Audit, settings with tokens, the API to try, the book, and pages that are not there.
import { must, until } from "../harness.mjs";

export default async function (tour) {
  const page = await tour.login();
  await page.goto("/settings");
  await page.getByRole("heading", { name: "Configuration" }).waitFor();
  await tour.look(page, "settings");
  // Between a phone and a desk, too, every column is there without scrolling sideways.
  for (const width of [360, 640, 768, 900]) {
    await page.setViewportSize({ width, height: 900 });
    const cut = await page.$$eval(".table-wrap", (all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length);
    must(cut === 0, `${cut} tables are cut off at ${width} px`);
  }
  await page.setViewportSize({ width: 1280, height: 800 });
  const { items: tokens } = await tour.api("GET", "/api/v1/tokens");
  await page.getByRole("button", { name: /New token|Make a token|Create/ }).first().click();
  const dialog = page.getByRole("dialog").last();
  await dialog.getByLabel("Name", { exact: true }).fill("on call");
  await dialog.getByLabel("Role").selectOption("operator");
  await tour.look(page, "settings-new-token");
  await dialog.locator("[type=submit]").last().click();
  const secret = page.getByRole("dialog", { name: "Copy it now" });
  await secret.getByText(/tg_operator_/).waitFor();
  await tour.look(page, "settings-secret");
  await secret.getByRole("button", { name: "Done" }).click();
  await page.getByText("on call").first().waitFor();
  must((await tour.api("GET", "/api/v1/tokens")).items.length === tokens.length + 1, "one token more");

  await page.goto("/audit");
  await page.getByText("token.create").first().waitFor();
  await page.getByText("Show").first().click();
  await tour.look(page, "audit");

  await page.goto("/api");
  await until("operations are listed", async () => (await page.locator("details.op").count()) > 40);
  await page.getByLabel("Find an operation").fill("/livez");
  await page.locator("details.op:visible summary").first().click();
  await page.locator("details.op:visible").getByRole("button", { name: /Send|Try|Call/ }).click();
  await page.getByText(/in \d+ ms/).waitFor();
  await tour.look(page, "api");

  await page.goto("/docs");
  await page.getByRole("heading", { level: 1 }).first().waitFor();
  await tour.look(page, "docs");
  await page.goto("/docs/configuration");
  await page.getByText("http.listen").or(page.getByText("listen")).first().waitFor();
  await tour.look(page, "docs-configuration");

  tour.forgive(/404 \(Not Found\)/);
  await page.goto("/nothing/here");
  await page.getByText("404").first().waitFor();
  await tour.look(page, "not-found");
}
