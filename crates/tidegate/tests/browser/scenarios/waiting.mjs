// A visitor joins, watches the position fall, is told things, is let in and lands on the target.
// Refreshing, going back and a second tab never cost the place.
import { must, until } from "../harness.mjs";
import { Line, position } from "../room.mjs";

export default async function (tour) {
  const line = await Line.make(tour, "spring-sale");
  const others = await line.joinMany(6);
  const page = await tour.visitor({ viewport: { width: 390, height: 844 } });
  await page.goto("/_wr/spring-sale?return_to=%2Fdocs%3Ffrom%3Droom");
  await page.getByRole("heading", { level: 1, name: "You are waiting in the queue" }).waitFor();
  must((await position(page)) === 7, `seventh, not ${await position(page)}`);
  must(new URL(page.url()).pathname === "/_wr/spring-sale/wait", "a clean address");
  await tour.look(page, "waiting");

  // The numbers fall by themselves, without loading the page again.
  await page.evaluate(() => { window.stillHere = true; });
  await line.leave(others[0]);
  await line.leave(others[1]);
  await until("the position falls to 5", async () => (await position(page)) === 5);
  await page.getByText("4 people ahead of you").waitFor();
  await line.join();
  await page.getByText("1 person behind you").waitFor();
  must(await page.evaluate(() => window.stillHere), "the page was not loaded again");
  must((await page.title()).startsWith("(5) "), `the tab shows the position: ${await page.title()}`);

  // Refresh, back and a second tab.
  await page.reload();
  must((await position(page)) === 5, "a refresh keeps the place");
  await page.goto("/docs");
  await page.goBack();
  await until("back on the page", async () => (await page.locator("[data-position]").count()) === 1);
  must((await position(page)) === 5, "going back keeps the place");
  const second = await page.context().newPage();
  await second.goto("/_wr/spring-sale?return_to=%2Fdocs%3Ffrom%3Droom");
  must((await position(second)) === 5, "a second tab is the same place");
  let asked = 0;
  second.on("request", (request) => { if (request.url().includes("/heartbeat") || request.url().includes("/events")) asked += 1; });
  await line.leave(others[2]);
  for (const tab of [page, second]) await until("both tabs show 4", async () => (await position(tab)) === 4);
  must(asked <= 1, `one tab asks for all, the other asked ${asked} times`);
  await second.close();

  // What an operator says and does is seen at once.
  await line.act("message", { text: { en: "The doors open again at 20:00.", de: "Um 20 Uhr geht es weiter." } });
  await page.getByRole("note").getByText("The doors open again at 20:00.").waitFor();
  await line.act("pause");
  await page.getByRole("heading", { level: 1, name: "The queue is paused" }).waitFor();
  await tour.look(page, "waiting-paused");
  await page.getByRole("link", { name: "Deutsch" }).click();
  await page.getByRole("heading", { level: 1, name: "Die Warteschlange pausiert" }).waitFor();
  await page.getByText("Um 20 Uhr geht es weiter.").waitFor();
  await line.act("resume");
  await page.getByRole("heading", { level: 1, name: "Sie warten in der Warteschlange" }).waitFor();
  await tour.look(page, "waiting-german");

  // The turn comes: those ahead leave, there is room, and the page goes on by itself.
  for (const token of others.slice(3)) await line.leave(token);
  await until("first in line", async () => (await position(page)) === 1);
  await line.change({ max_active: 2 });
  await page.waitForURL("**/docs?from=room");
  const cookies = await page.context().cookies();
  const pass = cookies.find((cookie) => cookie.name === "wr_spring_sale");
  must(pass?.value.startsWith("eyJ") && pass.httpOnly && pass.sameSite === "Lax", "came in with a pass");
  await page.goBack();
  await until("back does not lead to a new place", async () => !page.url().includes("/wait"));
}
