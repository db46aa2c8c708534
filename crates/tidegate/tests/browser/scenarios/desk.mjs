// The desk: traffic, endpoints, limits with a block and an edit, users with a block and its undo.
import { must, until } from "../harness.mjs";

export default async function (tour) {
  const page = await tour.login();
  await page.goto("/desk/users");
  await page.getByText("No users yet").waitFor();
  await tour.look(page, "desk-users-empty");

  // A policy from the form: in shadow first, as the form proposes.
  await page.goto("/desk/limits");
  await page.getByRole("button", { name: "New policy" }).click();
  const dialog = page.getByRole("dialog", { name: "New policy" });
  await dialog.getByRole("textbox", { name: /^Name/ }).fill("search");
  await dialog.getByRole("spinbutton", { name: /^Limit/ }).fill("2");
  await dialog.getByRole("button", { name: "Store" }).click();
  await page.getByText("Stored; every instance has it within a second").waitFor();
  await page.getByRole("link", { name: "search" }).waitFor();

  const check = (user) => tour.api("POST", "/api/v1/ratelimit/check", { identity: { user }, policies: ["search"] });
  for (let n = 0; n < 5; n += 1) must((await check("anna")).allowed, "a shadow policy never denies");
  await page.getByRole("link", { name: "search" }).click();
  await page.getByText("user:anna").waitFor();
  await tour.look(page, "desk-policy-shadow");

  // The numbers look right: switch it on.
  await page.getByRole("button", { name: "Edit" }).click();
  const edit = page.getByRole("dialog", { name: "Edit search" });
  await edit.getByLabel(/^Shadow/).uncheck();
  await edit.getByRole("button", { name: "Store" }).click();
  await until("it denies now", async () => !(await check("anna")).allowed);
  await page.getByText("enforced").waitFor();

  // A stricter rule, tried beside it before it counts.
  await page.getByRole("button", { name: "Preview a change" }).click();
  const preview = page.getByRole("dialog", { name: /^Preview another rule/ });
  await preview.getByRole("spinbutton", { name: /^Limit/ }).fill("1");
  await preview.getByRole("button", { name: "Start preview" }).click();
  await page.getByText("Preview on live traffic").waitFor();
  for (let n = 0; n < 2; n += 1) must((await check("carla")).allowed, "the rule that counts allows two");
  await page.getByText("1 (50.0 %)").waitFor();
  await tour.look(page, "desk-policy-preview");
  await page.getByRole("button", { name: "Apply" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Apply" }).click();
  await page.getByText("Preview on live traffic").waitFor({ state: "detached" });
  await page.getByText("1 per 1 min, counter", { exact: true }).waitFor();
  must((await tour.api("GET", "/api/v1/ratelimit/policies/search")).limit === 1, "the previewed rule counts");

  await page.getByRole("row", { name: /user:anna/ }).getByRole("button", { name: "Block 1 h" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Block" }).click();
  await page.getByRole("button", { name: "Unblock" }).waitFor();
  must((await check("anna")).limits[0].decided_by === "block", "the block decides");
  await tour.look(page, "desk-policy");
  await page.getByRole("button", { name: "Unblock" }).click();
  await page.getByText("Nobody is blocked").waitFor();
  // Somebody who is on no list is blocked by name.
  await page.getByRole("button", { name: "Block an identity" }).click();
  const block = page.getByRole("dialog", { name: /^Block an identity at search/ });
  await block.getByLabel("Kind").selectOption("user");
  await block.getByRole("textbox", { name: /^Identity/ }).fill("dora/1");
  await block.getByRole("textbox", { name: /^Time/ }).fill("10m");
  await tour.look(page, "desk-policy-block");
  await block.getByRole("button", { name: "Block", exact: true }).click();
  await page.getByRole("button", { name: "Unblock" }).waitFor();
  must((await check("dora/1")).limits[0].decided_by === "block", "the block by name decides");

  // A quota by the calendar is made, changed and tried like any other policy.
  await page.goto("/desk/limits");
  await page.getByRole("button", { name: "New quota" }).click();
  const quota = page.getByRole("dialog", { name: "New quota" });
  await quota.getByRole("textbox", { name: /^Name/ }).fill("reports");
  await quota.getByRole("spinbutton", { name: /^Limit/ }).fill("5");
  await quota.getByRole("combobox", { name: /^Period/ }).selectOption("day");
  await quota.getByRole("textbox", { name: /^Time zone/ }).fill("Europe/Berlin");
  await quota.getByRole("textbox", { name: /^Exempt/ }).fill("10.0.0.0/8, 192.0.2.7");
  await quota.getByRole("button", { name: "Store" }).click();
  await page.getByText("5 per day in Europe/Berlin, calendar").waitFor();
  await page.getByRole("link", { name: "reports" }).click();
  await page.getByText("10.0.0.0/8, 192.0.2.7", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Edit" }).click();
  const change = page.getByRole("dialog", { name: "Edit reports" });
  await change.getByRole("spinbutton", { name: /^Limit/ }).fill("6");
  await change.getByRole("textbox", { name: /^Exempt/ }).fill("");
  await change.getByRole("button", { name: "Store" }).click();
  await page.getByText("6 per day in Europe/Berlin, calendar", { exact: true }).waitFor();
  must((await tour.api("GET", "/api/v1/ratelimit/policies/reports")).exempt.length === 0, "an emptied list is empty");
  // What a proxy asks by stands beside the policies.
  const rule = { key: "remote_address", limit: { requests_per_unit: 60, unit: "minute" } };
  await tour.api("PUT", "/api/v1/ratelimit/domains/web", { descriptors: [rule] });
  await page.goto("/desk/limits");
  await page.getByText("login_account").waitFor();
  await page.getByText("Domains of Envoy").waitFor();
  await tour.look(page, "desk-limits");
  await page.getByRole("row", { name: /^web / }).getByRole("button", { name: "Remove" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await page.getByText("Domains of Envoy").waitFor({ state: "detached" });

  // Users: two devices, a block with a reason, and its undo.
  for (const device_id of ["iPhone 15", "Firefox on Linux"]) await tour.api("POST", "/api/v1/users/anna/sessions", { device_id });
  await tour.api("POST", "/api/v1/users/bert/sessions", { device_id: "Pixel 9" });
  await page.goto("/desk/users");
  await page.getByLabel("Search users").fill("ann");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByRole("link", { name: "anna" }).click();
  await page.getByText("Firefox on Linux").waitFor();
  await page.getByRole("button", { name: "Block" }).click();
  await page.getByLabel("Reason").fill("spam <b>");
  await page.getByRole("dialog", { name: "Block anna" }).getByRole("button", { name: "Block" }).click();
  await page.getByText("spam <b>").waitFor();
  await tour.look(page, "desk-user-blocked");
  await page.getByRole("button", { name: "Unblock" }).click();
  await page.getByRole("button", { name: "Block" }).waitFor();
  await page.getByRole("button", { name: "End" }).first().click();
  await page.getByRole("dialog").getByRole("button", { name: "End" }).click();
  await until("one device is left", async () => (await page.getByRole("button", { name: "End", exact: true }).count()) === 1);
  await page.goto("/desk/users");
  await page.getByRole("link", { name: "bert" }).waitFor();
  await tour.look(page, "desk-users");

  // A user who was anonymous is anonymous again once a block is lifted.
  await tour.api("PATCH", "/api/v1/users/bert", { status: "anonymous" });
  await tour.api("PATCH", "/api/v1/users/bert", { status: "blocked" });
  await page.goto("/desk/users/bert");
  await page.getByRole("button", { name: "Unblock" }).click();
  await page.getByText("anonymous", { exact: true }).waitFor();

  // Traffic comes by itself.
  await page.goto("/desk/traffic");
  await page.getByText("GET /desk/users", { exact: true }).waitFor();
  await tour.look(page, "desk-traffic");
  await page.goto("/desk/endpoints?sort=p99");
  await page.getByText("PUT /api/v1/ratelimit/policies/:policy", { exact: true }).waitFor();
  await tour.look(page, "desk-endpoints");
  await page.getByRole("navigation", { name: "Order" }).getByRole("link", { name: "errors" }).click();
  await page.waitForURL((url) => url.searchParams.get("sort") === "errors");
  await tour.api("POST", "/api/v1/metrics/requests", { app: "shop", items: [{ method: "GET", route: "/cart", status: 200, duration_ms: 9 }] });
  await page.goto("/desk/endpoints?app=shop");
  await page.getByText("GET /cart", { exact: true }).waitFor();
  await page.getByRole("link", { name: "This program" }).waitFor();

  // Who may only look sees no actions.
  const viewer = await tour.login(await tour.tokenOf("viewer"));
  await viewer.goto("/desk/limits/search");
  await viewer.getByText("Identities with the most requests").waitFor();
  must((await viewer.getByRole("button", { name: "Edit" }).count()) === 0, "a viewer cannot edit");
  await viewer.goto("/desk/users/anna");
  await viewer.getByText("Devices").waitFor();
  must((await viewer.getByRole("button", { name: "Block" }).count()) === 0, "a viewer cannot block");
}
