// The resolver: the first three decisions, and every page with what can be done on it, by clicking.
import { must, until } from "../harness.mjs";

// A query for the address of a name, as DNS over HTTPS takes it.
function query(name) {
  const labels = name.split(".").flatMap((label) => [label.length, ...Buffer.from(label)]);
  return new Uint8Array([0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, ...labels, 0, 0, 1, 0, 1]);
}

export default async function (tour) {
  const ask = async (name, client = "") => {
    const answer = await fetch(`${tour.base}/dns-query${client}`, { method: "POST", headers: { "content-type": "application/dns-message" }, body: query(name) });
    must(answer.status === 200, `the query for ${name} was answered with ${answer.status}`);
    return [...new Uint8Array(await answer.arrayBuffer())].slice(-4).join(".");
  };
  const [TRUE, NULL] = ["192.0.2.7", "0.0.0.0"];
  // Mistakes that are made on purpose below.
  tour.forgive(/status of 400 .*\/api\/v1\/dns\/(setup|rules|lists|policy)/);
  const page = await tour.login();
  // A message is read and put away, so that the next one of the same words is a new one.
  const said = async (text) => {
    const toast = page.locator(".toast", { hasText: text }).first();
    await toast.waitFor();
    if (!(await toast.getByRole("button", { name: "Undo" }).isVisible())) await toast.getByRole("button", { name: "Dismiss" }).click();
  };
  const button = (name, within = page) => within.getByRole("button", { name, exact: true });
  // A dialog is opened, filled by the names of its fields, and sent; a list checks boxes.
  const fill = async (opener, fields, verb) => {
    await page.getByRole("button", { name: opener }).first().click();
    const dialog = page.locator("dialog[open]");
    for (const [name, value] of Object.entries(fields)) {
      if (Array.isArray(value)) {
        for (const one of value) await dialog.locator(`[name="${name}"][value="${one}"]`).check();
        continue;
      }
      const field = dialog.locator(`[name="${name}"]`);
      if ((await field.evaluate((element) => element.tagName)) === "SELECT") await field.selectOption(value);
      else await field.fill(value);
    }
    await button(verb, dialog).click();
  };

  // Empty pages read well, too.
  await page.goto("/dns");
  await page.getByText("Three things to decide").waitFor();
  await tour.look(page, "dns-first");
  for (const [path, text] of [["queries", "No queries yet"], ["rules", "No rules"], ["clients", "No known clients"], ["records", "No records"]]) {
    await page.goto(`/dns/${path}`);
    await page.getByText(text, { exact: true }).waitFor();
    await tour.look(page, `dns-${path}-empty`);
  }

  // The three decisions; a mistake is told beside its field.
  await page.goto("/dns");
  await page.locator("[name=upstream][value=own]").check();
  await button("Set it up").click();
  await page.getByText("Name the servers, such as").waitFor();
  await page.locator("[name=upstream][value=settings]").check();
  await page.locator("[name=access][value=machine]").check();
  await button("Set it up").click();
  await said("The resolver is set up");
  must(!(await page.getByText("Three things to decide").isVisible()), "the decisions are made");
  must((await ask("doubleclick.net")) === NULL, "the built-in list is in use");

  // Queries: live, found, opened, and decided about with the buttons, each taken back.
  for (const name of ["shop.example", "www.shop.example", "news.example", "shop.example"]) await ask(name);
  await page.goto("/dns/queries");
  const row = page.locator("tbody tr", { hasText: "news.example" });
  await until("the query is logged", async () => (await row.count()) === 1);
  await row.locator("summary").click();
  await row.getByText("nothing decided about this name").waitFor();
  await tour.look(page, "dns-queries");
  for (const [name, text] of [
    ["Block", "news.example is blocked for everybody"],
    ["Block for an hour", "news.example is blocked for an hour"],
    ["Block news.example", "news.example is blocked for everybody"],
    ["Block for this device", "news.example is blocked for 127.0.0.1"],
    ["Block for this device, for an hour", "news.example is blocked for 127.0.0.1, for an hour"],
  ]) {
    // Live rows of the queries below have the short button, too.
    await button(name, row).first().click();
    await said(text);
    must((await ask("news.example")) === NULL, `blocked by “${name}”`);
    await page.locator(".toast", { hasText: text }).getByRole("button", { name: "Undo" }).click();
    await said("Undone");
    must((await ask("news.example")) === TRUE, `“${name}” is taken back`);
  }
  await page.goto("/dns/queries?outcome=blocked&name=doubleclick");
  const blocked = page.locator("tbody tr", { hasText: "doubleclick.net" });
  await until("the blocked query is found", async () => (await blocked.count()) === 1);
  await blocked.locator("summary").click();
  await blocked.getByRole("link", { name: "The whole decision" }).click();
  await page.getByText("As it would be decided now").waitFor();
  await page.getByText(/line \d+/).first().waitFor();
  await tour.look(page, "dns-query");
  await button("Allow").click();
  await said("doubleclick.net is allowed for everybody");
  must((await ask("doubleclick.net")) === TRUE, "allowed by a click");
  await page.locator(".toast").getByRole("button", { name: "Undo" }).first().click();
  await said("Undone");
  await page.goto("/dns/queries");
  await page.getByLabel("Find queries by name").fill("nothing-like-it");
  await button("Find").click();
  await page.getByText("No logged query fits.").waitFor();
  // A time is typed in the zone of the browser and sent in UTC; an export has all conditions of the page.
  await page.goto("/dns/queries?name=shop&type=A&rcode=NOERROR");
  must((await page.getByRole("link", { name: "CSV" }).getAttribute("href")).includes("name=shop&type=A&rcode=NOERROR"), "the export has the conditions");
  const tomorrow = new Date(Date.now() + 86_400_000).toISOString().slice(0, 16);
  await page.locator("[data-utc=from]").fill(tomorrow);
  await button("Find").click();
  await page.getByText("No logged query fits.").waitFor();
  must(/from=\d{4}-.*Z/.test(decodeURIComponent(page.url())), "the time is sent in UTC");

  // Rules: added, tried, removed; a bad one is told beside its field. For a while; pause and resume.
  await page.goto("/dns/rules");
  await fill("Add a rule", { rule: "||bad rule^" }, "Add");
  await page.locator("dialog[open] .field-error, .toast.bad").first().waitFor();
  await page.locator("dialog[open]").getByRole("button", { name: "Cancel" }).click();
  await page.reload();
  await fill("Add a rule", { rule: "||ads.example^" }, "Add");
  await said("The rule is in force");
  must((await ask("x.ads.example")) === NULL, "the rule blocks");
  await page.getByLabel("Name to try").fill("x.ads.example");
  await button("Try").click();
  await page.locator("pre.code", { hasText: "||ads.example^" }).waitFor();
  await tour.look(page, "dns-rules");
  await fill("Allow or block for a while", { name: "x.ads.example", action: "allow" }, "Do it");
  await said("The rule is in force");
  must((await ask("x.ads.example")) === TRUE, "allowed for a while");
  await button("End the rule for x.ads.example").click();
  await said("has ended");
  await button("Remove ||ads.example^").click();
  await said("Removed ||ads.example^");
  must((await ask("x.ads.example")) === TRUE, "the rule is gone");
  await page.goto("/dns/rules");
  await button("Pause for 10 minutes").click();
  await said("Filtering is paused for 10 minutes");
  await button("Filter again").click();
  await said("Filtering again");

  // Lists: switched off and on, previewed, fetched, added and removed; suggestions.
  await page.goto("/dns/lists");
  await page.getByText("in use").first().waitFor();
  await tour.look(page, "dns-lists");
  const list = page.locator("tbody tr:has(details)", { hasText: "Built-in list" }).first();
  await list.getByRole("link", { name: "Preview" }).click();
  await page.getByText("Without default: the last day again").waitFor();
  await tour.look(page, "dns-preview");
  await button("Switch off", list).click();
  await said("is off");
  await page.goto("/dns/lists");
  await button("Switch on", list).click();
  await said("is on");
  await fill("At some times", { list: "default", days: ["sat", "sun"], start: "08:00", end: "20:00" }, "Add");
  await said("The times hold from now on");
  await list.locator("summary").click();
  await list.getByText("Sat, Sun: 08:00 to 20:00").waitFor();
  await button("At all times", list).click();
  await said("counts at all times");
  await page.goto("/dns/lists");
  await fill("Add a list", { id: "mine", name: "My list", url: "file:mine.txt" }, "Add");
  await said("The list is fetched in the background");
  const mine = page.locator("tbody tr", { hasText: "My list" });
  await button("Fetch mine", mine).click();
  await page.locator(".toast.bad").first().waitFor();
  await page.reload();
  await mine.getByText("failed").waitFor();
  await tour.look(page, "dns-lists-failed");

  // Problems say what to do.
  await page.goto("/dns/problems");
  await until("the failed list is a problem", async () => {
    await page.reload();
    return page.getByText("The list My list was not fetched").isVisible();
  });
  await page.getByText("What to do:").first().waitFor();
  await tour.look(page, "dns-problems");
  await page.goto("/dns/lists");
  await button("Remove mine", mine).click();
  await button("Remove", page.locator("#confirm")).click();
  await said("Removed mine");

  // Groups: added, with times, lists, safe search and a reply; clients in them.
  await page.goto("/dns/groups");
  await fill("Add a group", { id: "kids", name: "Kids", description: "The small ones" }, "Add");
  await said("Group added");
  await page.locator("section", { hasText: "Kids" }).getByRole("link", { name: "Open" }).last().click();
  await fill("Add times", { schedule: "bedtime", days: ["mon", "tue"], start: "20:30", end: "06:30", time_zone: "Europe/Berlin" }, "Add");
  await said("The schedule is in force");
  await page.getByText("Mon, Tue: 20:30 to 06:30").waitFor();
  await page.locator("[name=safe_search][value=google]").check();
  await button("Save", page.locator("section", { hasText: "Lists and safe search" }).last()).click();
  await said("In force");
  await page.locator("[name='block_reply.mode']").selectOption("nxdomain");
  await button("Save", page.locator("section", { hasText: "Reply to blocked queries" }).last()).click();
  await said("In force");
  await page.locator("main form [name=rule]").fill("||video.example^");
  await button("Add the rule").click();
  await said("The rule is in force");
  await tour.look(page, "dns-group");
  await page.goto("/dns/clients");
  await until("this machine was seen", async () => {
    await page.reload();
    return page.getByRole("button", { name: "Name it: 127.0.0.1" }).isVisible();
  });
  await tour.look(page, "dns-clients");
  await button("Name it: 127.0.0.1").click();
  await said("127.0.0.1 is known as client-127-0-0-1");
  await page.locator("main form [name=name]").fill("Tablet");
  await page.locator("main form [name=group]").selectOption("kids");
  await button("Save").click();
  await said("In force");
  must((await ask("video.example")) !== TRUE, "the client's group blocks it");
  await page.getByRole("heading", { name: "Tablet" }).waitFor();
  await tour.look(page, "dns-client");
  await button("Pause for 10 minutes").click();
  await said("Filtering is paused for client-127-0-0-1, for 10 minutes");
  must((await ask("video.example")) === TRUE, "nothing is filtered in a pause");
  await page.locator(".toast").getByRole("button", { name: "Undo" }).first().click();
  await said("Undone");
  await page.goto("/dns/clients");
  await fill("Add a client", { id: "phone", name: "Phone", addresses: "192.168.1.40, 02:00:5e:10:00:01", group: "kids" }, "Add");
  await said("The client is known from now on");
  await button("Remove phone").click();
  await button("Remove", page.locator("#confirm")).click();
  await said("Removed phone");

  // Services, with a click and at some times.
  await page.goto("/dns/services?group=kids");
  await button("Block TikTok").click();
  await said("TikTok is blocked");
  must((await ask("www.tiktok.com")) !== TRUE, "the service is blocked");
  await button("Unblock TikTok").click();
  await said("TikTok is no longer blocked");
  await fill("At some times", { service: "roblox", days: ["wed"], start: "08:00", end: "16:00" }, "Add");
  await said("The schedule is in force");
  await fill("Add a service", { id: "games", name: "Games", domains: "games.example" }, "Add");
  await said("The service can be blocked now");
  await tour.look(page, "dns-services");
  await button("Remove Games").click();
  await button("Remove", page.locator("#confirm")).click();
  await said("Removed");

  // Records.
  await page.goto("/dns/records");
  await fill("Add a record", { name: "printer.home.arpa", type: "A", value: "192.168.1.9", ttl_seconds: "60" }, "Add");
  await said("The record is answered from now on");
  must((await ask("printer.home.arpa")) === "192.168.1.9", "the record is answered");
  await tour.look(page, "dns-records");
  await button("Remove printer.home.arpa").click();
  await said("Removed printer.home.arpa");

  // Upstreams: tested, added, removed.
  await page.goto("/dns/upstreams");
  await page.getByRole("button", { name: /^Test udp:/ }).first().click();
  await said("answered in");
  await page.locator("main form [name=server]").fill("127.0.0.1:9");
  await button("Test").last().click();
  await page.locator(".toast", { hasText: "127.0.0.1:9" }).first().waitFor();
  await tour.look(page, "dns-upstreams");
  const [{ server }] = (await tour.api("GET", "/api/v1/dns/upstreams")).items;
  await fill("Add an upstream", { address: server, name: "mine" }, "Add");
  await said("Queries are forwarded there now");
  await page.getByRole("button", { name: /^Remove udp:/ }).first().click();
  await button("Remove", page.locator("#confirm")).click();
  await said("Removed");

  // Cache: found, refreshed, deleted, swept, cleared.
  await page.goto("/dns/cache?name=shop.example");
  await button("Refresh now").click();
  await said("Asked upstream for shop.example again");
  await tour.look(page, "dns-cache");
  await button("Delete these answers").click();
  await said("Deleted the answers of shop.example");
  await page.getByText("Nothing is cached for this name").waitFor();
  await button("Sweep now").click();
  await said("Swept:");
  await button("Clear the cache").click();
  await button("Clear", page.locator("#confirm")).click();
  await said("The cache is empty");

  // Settings, import and export.
  await page.goto("/dns/settings");
  await tour.look(page, "dns-settings");
  await page.locator("[name='log.sample_one_in']").fill("1");
  await button("Save", page.locator("form", { has: page.locator("[name='log.sample_one_in']") })).click();
  await said("In force on all instances");
  await page.locator("[name='access.networks']").fill("127.0.0.0/8\nnonsense");
  await button("Save", page.locator("form", { has: page.locator("[name='access.networks']") })).click();
  await page.locator(".toast.bad").first().waitFor();
  await page.reload();
  await page.locator("main form [name=text]").fill("user_rules:\n  - '||imported.example^'\n  - 'example.com##.banner'\n");
  await button("Import").click();
  await said("Imported; 1 lines have no counterpart here");
  must((await ask("imported.example")) !== TRUE, "the imported rule holds");

  await page.goto("/dns/settings");
  await button("Delete all queries").click();
  await button("Delete", page.locator("#confirm")).click();
  await said(/Deleted \d+ queries/);
  await page.goto("/dns/queries");
  await page.getByText("No queries yet", { exact: true }).waitFor();
  for (const name of ["shop.example", "shop.example"]) await ask(name);

  // The block page: why, and a request that an operator decides. As a proxy it gets every name, as with its own
  // address in the reply to blocked queries.
  tour.forgive(/status of 403 .*forbidden\.example/);
  await tour.api("POST", "/api/v1/dns/rules", { rule: "||forbidden.example^" });
  const visitor = await tour.visitor({ proxy: { server: process.env.BLOCK_PAGE } });
  await visitor.goto("http://forbidden.example/some/page");
  await visitor.getByRole("heading", { name: "forbidden.example is blocked" }).waitFor();
  await visitor.getByText("||forbidden.example^").waitFor();
  await tour.look(visitor, "dns-block-page");
  await visitor.locator("textarea").fill("For the school");
  await visitor.getByRole("button", { name: "Ask to allow it" }).click();
  await visitor.getByRole("heading", { name: "Sent", exact: true }).waitFor();
  await visitor.goto("http://forbidden.example/");
  await visitor.getByText("You asked to allow this name").waitFor();
  await tour.look(visitor, "dns-block-page-asked");
  await page.goto("/dns");
  await page.getByText("1 request to allow a name").waitFor();
  await page.getByRole("link", { name: "Decide" }).click();
  await page.getByText("For the school").waitFor();
  await tour.look(page, "dns-rules-requests");
  await button("Allow", page.locator("li", { hasText: "forbidden.example" }).filter({ hasText: "For the school" })).click();
  await until("the name is allowed", async () => (await ask("forbidden.example")) === TRUE);
  await page.locator("li", { hasText: "For the school" }).getByText("allowed", { exact: true }).waitFor();

  // Instances, and the overview with figures; what a viewer sees.
  await page.goto("/dns/instances");
  await page.getByText("Live instances").waitFor();
  await tour.look(page, "dns-instances");
  await page.goto("/dns?range=1h");
  await until("the figures are there", async () => {
    await page.reload();
    return page.getByRole("link", { name: "shop.example" }).first().isVisible();
  });
  await tour.look(page, "dns-overview");
  // The picker changes figures and charts together; a figure leads to its queries.
  await button("7 d").click();
  await page.waitForURL(/range=7d/);
  must((await button("7 d").getAttribute("aria-pressed")) === "true", "the range is marked");
  await page.getByRole("link", { name: "shop.example", exact: true }).first().click();
  await page.waitForURL(/\/dns\/queries\?name=.*from=/);
  await page.locator("tbody tr", { hasText: "shop.example" }).first().waitFor();
  const viewer = await tour.login(await tour.tokenOf("viewer"));
  for (const path of ["", "/lists", "/groups/kids", "/settings"]) {
    await viewer.goto(`/dns${path}`);
    must((await viewer.locator("main [data-act], main form[data-api]").count()) === 0, `a viewer has no buttons on /dns${path}`);
  }
  await tour.look(viewer, "dns-settings-viewer");
  await page.goto("/dns/groups/kids");
  await button("Remove the group").click();
  await button("Remove", page.locator("#confirm")).click();
  await said("Removed");
}
