// What another site can make a browser do: nothing. And what is seen when the stream is cut.
import { must, until } from "../harness.mjs";

export default async function (tour) {
  await tour.api("POST", "/api/v1/admin/queues", { id: "summer-tour" });
  const page = await tour.login();

  // The same server under another name is another site; its cookies go along all the same.
  const other = tour.base.replace("127.0.0.1", "localhost");
  tour.forgive(/403 \(Forbidden\)/);
  tour.forgive(/Content Security Policy|policy broken/);
  tour.forgive(/CORS|Failed to load resource|net::ERR_FAILED/);
  const evil = await page.context().newPage();
  await evil.goto(`${other}/docs`);
  await evil.evaluate(async (target) => {
    try { await fetch(target, { method: "POST", mode: "no-cors", credentials: "include" }); } catch { /* refused by the policy of the page */ }
  }, `${tour.base}/api/v1/admin/queues/summer-tour/pause`);
  must((await tour.api("GET", "/api/v1/admin/queues/summer-tour")).status === "active", "another site cannot pause");
  await evil.close();

  // A cookie alone, without the browser's word on where it came from, changes nothing either.
  const cookie = (await page.context().cookies()).map(({ name, value }) => `${name}=${value}`).join("; ");
  const bare = await fetch(`${tour.base}/api/v1/admin/queues/summer-tour/pause`, { method: "POST", headers: { cookie, origin: "https://evil.example" } });
  must(bare.status === 403, `a foreign origin is refused, not ${bare.status}`);

  // The stream is cut: the page says so, and recovers by itself.
  tour.forgive(/ERR_INTERNET_DISCONNECTED|ERR_NETWORK_CHANGED|ERR_INCOMPLETE_CHUNKED/);
  await page.goto("/room");
  const state = () => page.evaluate(() => document.documentElement.dataset.liveState);
  await until("the stream is up", async () => (await state()) === "on");
  await page.route("**/api/v1/live**", (route) => route.abort());
  await page.reload();
  await page.getByText("The live connection is down").waitFor({ state: "visible" });
  const { height } = await page.locator(".offline").boundingBox();
  must(height < 80, `a banner of one or two lines, not ${height} pixels high`);
  await tour.look(page, "offline");
  await page.unroute("**/api/v1/live**");
  await until("the stream is back", async () => (await state()) === "on");
  await page.getByText("The live connection is down").waitFor({ state: "hidden" });
}
