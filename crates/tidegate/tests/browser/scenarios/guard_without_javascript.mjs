// The same site and guard for a browser without any script, at phone width.
import { join } from "node:path";
import { must, until } from "../harness.mjs";
import { position } from "../room.mjs";

export default async function (tour) {
  const shot = async (page, name) => {
    await page.screenshot({ path: join(tour.shots, `${name}-phone-light.png`), fullPage: true });
    tour.looks += 1;
  };
  const inShop = (page) => page.getByRole("heading", { level: 1, name: "Harbour Lights Festival" }).waitFor();
  const at = () => tour.visitor({ baseURL: tour.guard, javaScriptEnabled: false, viewport: { width: 390, height: 844 } });

  const [first, second, third] = [await at(), await at(), await at()];
  await first.goto("/tickets?show=7");
  await inShop(first);
  await second.goto("/tickets?show=7");
  await third.goto("/tickets?show=7");
  await third.getByRole("heading", { level: 1, name: "You are waiting in the queue" }).waitFor();
  must((await position(third)) === 2, "second in line");
  await shot(third, "guard-no-script");

  // The pages look again by themselves.
  await first.getByRole("link", { name: "Finish" }).click();
  await second.waitForURL(`${tour.guard}/tickets?show=7`, { timeout: 60_000 });
  await inShop(second);
  await until("place 1 is shown", async () => (await position(third).catch(() => 0)) === 1, 60);
  await shot(third, "guard-no-script-next");
  await second.getByRole("link", { name: "Finish" }).click();
  await third.waitForURL(`${tour.guard}/tickets?show=7`, { timeout: 60_000 });
  await inShop(third);
  await third.getByRole("button", { name: "Buy" }).click();
  await third.getByText("In your cart: count=2").waitFor();
  await shot(third, "guard-no-script-cart");
}
