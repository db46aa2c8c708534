// The same without any script: the page looks again by itself, forms do the rest.
import { join } from "node:path";
import { must, until } from "../harness.mjs";
import { Line, position } from "../room.mjs";

export default async function (tour) {
  const line = await Line.make(tour, "no-script");
  const others = await line.joinMany(2);
  const page = await tour.visitor({ javaScriptEnabled: false, viewport: { width: 390, height: 844 }, locale: "es-ES" });
  const shot = async (name) => {
    await page.screenshot({ path: join(tour.shots, `${name}-phone-light.png`), fullPage: true });
    tour.looks += 1;
  };
  await page.goto("/_wr/no-script?return_to=%2Fdocs");
  await page.getByRole("heading", { level: 1, name: "Estás esperando en la cola" }).waitFor();
  must((await position(page)) === 3, "third");
  await shot("waiting-no-script");

  // Leaves and joins again, both with forms.
  await page.getByText("Salir de la cola").first().click();
  await page.getByRole("button", { name: "Salir de la cola" }).click();
  await page.getByRole("heading", { level: 1, name: "Has salido de la cola" }).waitFor();
  await shot("waiting-no-script-left");
  await page.getByRole("button", { name: "Volver a la cola" }).click();
  await page.getByRole("heading", { level: 1, name: "Estás esperando en la cola" }).waitFor();
  must((await position(page)) === 3, "third again");

  for (const token of others) await line.leave(token);
  await until("the page looks again by itself", async () => (await position(page).catch(() => 0)) === 1, 40);
  await line.change({ max_active: 2 });
  await page.waitForURL("**/docs", { timeout: 40_000 });
}
