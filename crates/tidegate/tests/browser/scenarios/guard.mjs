// A site behind `tidegate room guard`, with room for one: visitors come to the site itself, wait on
// its own address, watch the position fall, are let in and use the site through the proxy.
import { must, until } from "../harness.mjs";
import { position } from "../room.mjs";

const PHONE = { viewport: { width: 390, height: 844 } };

export default async function (tour) {
  const at = (options) => tour.visitor({ baseURL: tour.guard, ...options });
  const inShop = (page) => page.getByRole("heading", { level: 1, name: "Harbour Lights Festival" });

  // The site's own name, colour and logo; a colour that nobody could read as it is.
  await tour.api("PATCH", "/api/v1/admin/queues/site", { name: "Harbour Lights Festival", brand_color: "#ffb000", brand_logo: "/logo.svg" });

  // While there is room, nothing of the room is to be seen: page, style, script and form are the site's.
  const first = await at();
  await first.goto("/tickets?show=7");
  await inShop(first).waitFor();
  must(first.url() === `${tour.guard}/tickets?show=7`, `the address is the site's: ${first.url()}`);
  await first.getByText("412 tickets left").waitFor();
  const colour = await inShop(first).evaluate((title) => getComputedStyle(title).color);
  must(colour === "rgb(0, 90, 60)", `the site's own style: ${colour}`);
  await tour.look(first, "guard-site");

  // The next three wait, each in a browser of their own.
  const waiting = [await at(), await at(PHONE), await at({ colorScheme: "dark" })];
  for (const [index, page] of waiting.entries()) {
    await page.goto("/tickets?show=7");
    await page.getByRole("heading", { level: 1, name: "You are waiting in the queue" }).waitFor();
    must(page.url().startsWith(`${tour.guard}/_wr/site/wait`), `waits on the site's own address: ${page.url()}`);
    must((await position(page)) === index + 1, `place ${index + 1}, not ${await position(page)}`);
  }
  const [second, phone, last] = waiting;
  const logo = phone.locator("img.logo");
  must(await logo.evaluate((img) => img.complete && img.naturalWidth > 0), "the logo is seen");
  const number = await phone.locator("[data-position]").evaluate((element) => getComputedStyle(element).color);
  must(number !== "rgb(8, 102, 125)" && number !== "rgb(255, 176, 0)", `the site's colour, made readable: ${number}`);
  await tour.look(phone, "guard-waiting");
  for (const page of waiting) await page.evaluate(() => { window.stillHere = true; });

  // Asking for the site again, or for another page of it, costs nobody the place.
  await last.goto("/tickets");
  await last.getByRole("heading", { level: 1, name: "You are waiting in the queue" }).waitFor();
  must((await position(last)) === 3, "third still");
  await last.evaluate(() => { window.stillHere = true; });

  // The first one is done; the second is let in without doing anything, the others move up.
  await first.getByRole("link", { name: "Finish" }).click();
  await first.getByText("Your tickets are on their way.").waitFor();
  await second.waitForURL(`${tour.guard}/tickets?show=7`);
  await inShop(second).waitFor();
  await second.getByText("412 tickets left").waitFor();
  await until("the phone shows place 1", async () => (await position(phone)) === 1);
  await until("the last shows place 2", async () => (await position(last)) === 2);
  for (const page of [phone, last]) must(await page.evaluate(() => window.stillHere), "moved up without loading again");
  await tour.look(phone, "guard-next");

  // Inside, what is sent arrives; and the pass is a cookie no script can read.
  await second.getByLabel("Tickets").fill("4");
  await second.getByRole("button", { name: "Buy" }).click();
  await second.getByText("In your cart: count=4").waitFor();
  const pass = (await second.context().cookies()).find((cookie) => cookie.name === "wr_site");
  must(pass?.value.startsWith("eyJ") && pass.httpOnly, "came in with a pass");
  await second.getByRole("link", { name: "Finish" }).click();

  // The phone's turn.
  await phone.waitForURL(`${tour.guard}/tickets?show=7`);
  await inShop(phone).waitFor();
  await tour.look(phone, "guard-admitted");
  await phone.reload();
  await inShop(phone).waitFor();
  await phone.goBack();
  await until("going back leads no admitted visitor to the line", async () => !phone.url().includes("/wait"));

  // An operator makes room for one more, in the queue the guard made. All browsers here have one address.
  must((await position(last)) === 1, "first in line");
  await tour.api("PATCH", "/api/v1/admin/queues/site", { max_active: 2, max_active_per_address: 0 });
  await last.waitForURL(`${tour.guard}/tickets`);
  await inShop(last).waitFor();
  const stats = await tour.api("GET", "/api/v1/admin/queues/site/stats");
  must(stats.total_active === 2, `two inside: ${JSON.stringify(stats)}`);
}
