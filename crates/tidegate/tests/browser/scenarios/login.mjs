// The way in and out: a wrong token is refused, the right one opens the page one asked for.
import { must } from "../harness.mjs";

export default async function (tour) {
  const page = await tour.visitor();
  await page.goto("/audit");
  must(new URL(page.url()).pathname === "/login", `asked to log in, not ${page.url()}`);
  await tour.look(page, "login");

  tour.forgive(/401 \(Unauthorized\)/);
  await page.getByLabel("Token").fill("tg_admin_wrong");
  await page.getByLabel("Token").press("Enter");
  await page.getByRole("alert").getByText("not valid").waitFor();
  await tour.look(page, "login-refused");

  await page.getByLabel("Token").fill(tour.token);
  await page.getByLabel("Token").press("Enter");
  await page.waitForURL("**/audit");
  await page.getByText("session.open").first().waitFor();

  await page.getByRole("button", { name: "Log out" }).click();
  await page.waitForURL("**/login");
  await page.goto("/");
  must(new URL(page.url()).pathname === "/login", "logged out for good");
}
