// The support chat in two windows, on two instances: a visitor on another site, an agent in the console. First message,
// typing, file, note (not seen), transfer, resolve, rating, reload, a lost connection, the offline form, a second device
// with a proof, a phone.
import { createHmac } from "node:crypto";
import { createServer } from "node:http";
import { must, until } from "../harness.mjs";

const PNG = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC", "base64");
const PASSWORD = "correct horse battery";
// As shared_settings of e2e/chat_client.rs has it.
const SECRET = "secret of the site";

// Another site: a page with the widget's script, and attributes of it by path.
function openShop(tour) {
  const attributes = { "/consent": 'data-consent="I agree that my message is stored."', "/cart": 'data-color="#7a4fd0"' };
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, tour.guard);
    response.writeHead(200, { "content-type": "text/html; charset=utf-8" });
    response.end(`<!doctype html><html lang="en"><head><title>Shop</title><link rel="icon" href="data:,"><meta name="viewport" content="width=device-width, initial-scale=1"></head>
      <body><main><h1>Shop</h1><p>Welcome.</p><button id="buy">Buy</button></main><script src="${tour.other}/widget.js" async ${attributes[pathname] ?? ""}></script></body></html>`);
  });
  return new Promise((done) => server.listen(Number(new URL(tour.guard).port), "127.0.0.1", () => done(server)));
}

const panelOf = (page) => page.frameLocator("#tidegate-chat iframe");
const talkOf = (panel) => panel.getByRole("region", { name: "Chat with us" });

// Adds an agent; answers what the link of their invitation ends with.
async function invite(tour, email, name, role) {
  const { invitation } = await tour.api("POST", "/api/v1/agents", { email, name, role });
  return invitation.split("/").at(-1);
}

// A window in which an agent accepts an invitation and works.
async function accept(tour, invitation) {
  const page = await tour.visitor();
  await page.goto(`/desk/invitation/${invitation}`);
  await page.getByLabel("Password").fill(PASSWORD);
  await page.getByLabel("The same again").fill(PASSWORD);
  await page.getByRole("button", { name: "Set password" }).click();
  await page.waitForURL((url) => url.pathname === "/desk");
  await page.getByRole("navigation", { name: "Views" }).waitFor();
  return page;
}

export default async function (tour) {
  const site = await openShop(tour);
  try {
    await story(tour, tour.guard);
  } finally {
    site.closeAllConnections();
    site.close();
  }
}

async function story(tour, shop) {
  // Nobody is there: a message is left. On a site of another name, whose frames get no storage in this browser.
  const early = await tour.visitor();
  await early.goto(`${shop.replace("127.0.0.1", "localhost")}/consent`);
  await early.getByRole("button", { name: "Open chat" }).click();
  const left = panelOf(early);
  await left.getByText("Leave a message").waitFor();
  await left.getByLabel("Write a message").fill("Please call me back");
  await left.getByRole("button", { name: "Send", exact: true }).click();
  await left.getByText("Please fill this in.").waitFor();
  await left.getByLabel("E-mail").fill("ben@example.org");
  await left.getByRole("button", { name: "Send", exact: true }).click();
  await left.getByText("Please agree first.").waitFor();
  await left.getByLabel(/I agree/).check();
  await left.getByRole("button", { name: "Send", exact: true }).click();
  await left.getByText("will reply to ben@example.org").waitFor();
  await early.context().close();

  // The login refuses a wrong password; the invitation lets in.
  const stranger = await tour.visitor();
  tour.forgive(/401 \(Unauthorized\)/);
  await stranger.goto("/desk");
  await stranger.waitForURL((url) => url.pathname === "/desk/login");
  await stranger.getByLabel("E-mail").fill("sarah@example.org");
  await stranger.getByLabel("Password").fill("wrong and long enough");
  await stranger.getByRole("button", { name: "Log in" }).click();
  await stranger.getByText("The e-mail address or the password is wrong.").waitFor();
  await tour.look(stranger, "desk-login");
  const sarah = await accept(tour, await invite(tour, "sarah@example.org", "Sarah", "supervisor"));
  const invitation = await invite(tour, "tom@example.org", "Tom", "agent");
  await tour.api("POST", "/api/v1/canned", { short_code: "hello", content: "Hello {{visitor.name|there}}, this is {{agent.name}}. How can I help?" });
  await tour.look(sarah, "desk-console-empty");

  // What was left while nobody was there waits for her now.
  await sarah.getByRole("button", { name: /^All open/ }).click();
  await sarah.getByRole("button", { name: /Please call me back/ }).first().waitFor();

  // Before the first click: no request beyond the page and the script, no cookie, nothing stored.
  const anna = await tour.visitor();
  const requests = [];
  let bytes = 0;
  anna.on("request", (request) => requests.push(request.url()));
  anna.on("response", async (response) => {
    if (!response.url().startsWith(tour.other) || response.url().includes("/api/")) return;
    const sizes = await response.request().sizes().catch(() => null);
    bytes += sizes?.responseBodySize ?? 0;
  });
  await anna.goto(`${shop}/cart?secret=1`);
  const opener = anna.getByRole("button", { name: "Open chat" });
  await opener.waitFor();
  await anna.waitForLoadState("networkidle");
  must(requests.length === 2, `requests before the first click: ${requests.join(", ")}`);
  const stored = () => anna.evaluate(() => [document.cookie, localStorage.length, sessionStorage.length].join());
  must((await stored()) === ",0,0", `stored before the first click: ${await stored()}`);
  must((await anna.context().cookies()).length === 0, "a cookie was set");
  await opener.click();
  const panel = panelOf(anna);
  await panel.getByText("Hello! How can we help?").waitFor();
  await until("the panel has the focus", () => anna.evaluate(() => document.activeElement?.id === "tidegate-chat"));
  await until("all files are counted", () => bytes > 10_000);
  must(bytes <= 30_000, `the widget weighs ${bytes} bytes`);
  must((await anna.context().cookies()).length === 0, "the panel sets no cookie");

  // The first message, as text only.
  await panel.getByLabel("Name").fill("Anna <img src=x onerror=alert(1)>");
  await panel.getByLabel("Write a message").fill("Where is **my order**? <script>alert(1)</script> javascript:alert(1) https://example.org/o");
  await panel.getByRole("button", { name: "Send", exact: true }).click();
  await talkOf(panel).getByText(/Sent|Read/).waitFor();
  must((await talkOf(panel).locator("strong").textContent()) === "my order", "bold is bold");
  must((await talkOf(panel).locator("a").count()) === 1, "one link, to https");
  must((await talkOf(panel).locator("img, script").count()) === 0, "text is not markup");

  // The agent sees it without a reload, opens it, and answers with a canned response, taken back once.
  await sarah.getByRole("button", { name: /^All open/ }).click();
  await sarah.getByRole("button", { name: /Anna/ }).first().click();
  const thread = sarah.getByRole("region", { name: "Messages" });
  await thread.getByText("my order").waitFor();
  must((await sarah.locator("img[src='x'], .thread script").count()) === 0, "a name is not markup");
  await sarah.getByRole("region", { name: "Visitor" }).getByText(`${shop}/cart`, { exact: true }).waitFor();
  const reply = sarah.getByRole("textbox", { name: "Reply", exact: true });
  await reply.fill("/hel");
  await sarah.getByRole("option", { name: /hello/ }).waitFor();
  await sarah.keyboard.press("Enter");
  await talkOf(panel).getByLabel("Sarah is typing").waitFor();
  await sarah.keyboard.press("Enter");
  await sarah.getByRole("button", { name: "Undo" }).click();
  must((await reply.inputValue()).includes("this is Sarah"), "what was taken back is in the field again");
  must((await talkOf(panel).getByText("this is Sarah").count()) === 0, "what was taken back was not sent");
  await sarah.keyboard.press("Enter");
  await talkOf(panel).getByText("this is Sarah").waitFor();
  await thread.getByText("read", { exact: true }).waitFor();

  // A note, with a mention; the visitor sees nothing of it.
  await sarah.getByRole("button", { name: "Note", exact: true }).click();
  const note = sarah.getByRole("textbox", { name: "Note", exact: true });
  await note.fill("Knows us since 2019, ask @");
  await sarah.getByRole("option", { name: /Tom/ }).click();
  await sarah.keyboard.press("Enter");
  await thread.getByText("Knows us since 2019").waitFor();

  // Typing the other way, then a file with a preview.
  await panel.getByLabel("Write a message").pressSequentially("Here is a picture");
  await sarah.locator(".typing").getByText(/is typing/).waitFor();
  await panel.locator("input[type=file]").setInputFiles({ name: "shot.png", mimeType: "image/png", buffer: PNG });
  await panel.getByText("shot.png").waitFor();
  await until("the file is uploaded", async () => (await panel.getByText("Uploading").count()) === 0);
  await panel.getByRole("button", { name: "Send", exact: true }).click();
  await thread.getByRole("link", { name: "Image: shot.png" }).waitFor();
  await until("the picture is shown", () => talkOf(panel).locator("img").first().evaluate((image) => image.naturalWidth === 10));
  must((await talkOf(panel).getByText("2019").count()) === 0, "a note is not seen");
  await tour.look(sarah, "desk-console");
  await tour.lookInto(anna, "chat-panel");

  // A lost connection: what is written goes out once; a draft survives a reload.
  tour.forgive(/ERR_INTERNET_DISCONNECTED|WebSocket/);
  await anna.context().setOffline(true);
  await panel.getByLabel("Write a message").fill("Written without a connection");
  await panel.getByRole("button", { name: "Send", exact: true }).click();
  await talkOf(panel).getByText("Sending").waitFor();
  await anna.context().setOffline(false);
  await thread.getByText("Written without a connection").waitFor();
  must((await thread.getByText("Written without a connection").count()) === 1, "it went out once");
  await panel.getByLabel("Write a message").fill("A draft");
  await anna.reload();
  await anna.getByRole("button", { name: "Open chat" }).click();
  await talkOf(panel).getByText("Written without a connection").waitFor();
  must((await panel.getByLabel("Write a message").inputValue()) === "A draft", "the draft is there after a reload");

  // A second tab is in step; the first one counts what is unread while it is closed.
  await anna.keyboard.press("Escape");
  await anna.getByRole("button", { name: "Open chat" }).waitFor();
  await sarah.getByRole("button", { name: "Reply", exact: true }).click();
  await reply.fill("It is on its way");
  await sarah.keyboard.press("Enter");
  await anna.getByRole("button", { name: "Open chat (1 unread)" }).waitFor();
  await anna.getByRole("button", { name: "Open chat (1 unread)" }).click();
  await talkOf(panel).getByText("It is on its way").waitFor();

  // Tags; a transfer with a note to a colleague, who resolves it; the visitor rates it.
  await sarah.getByRole("button", { name: "Tags" }).click();
  await sarah.getByRole("textbox", { name: /^Tags/ }).fill("parcel, late");
  await sarah.getByRole("button", { name: "Save" }).click();
  await sarah.locator(".head").getByText("late", { exact: true }).waitFor();
  const tom = await accept(tour, invitation);
  await tom.getByRole("button", { name: /^Mentions/ }).click();
  await tom.getByRole("button", { name: /Anna/ }).first().waitFor();
  await sarah.getByRole("button", { name: "Transfer" }).click();
  const transfer = sarah.getByRole("dialog", { name: "Transfer" });
  await transfer.getByLabel(/^To/).selectOption({ label: "Tom (online)" });
  await transfer.getByLabel(/^Note/).fill("Yours, please");
  await transfer.getByRole("button", { name: "Transfer" }).click();
  await tom.getByRole("button", { name: /^Mine/ }).click();
  await tom.getByRole("button", { name: /Anna/ }).first().click();
  await tom.getByRole("region", { name: "Messages" }).getByText("Yours, please").waitFor();
  await panel.getByText("You are talking to Tom").waitFor();
  must((await talkOf(panel).getByText("Yours, please").count()) === 0, "the note of a transfer is not seen");
  await sarah.locator(".watching").getByText("Tom is looking at this too").waitFor();
  await tom.getByRole("button", { name: "Resolve", exact: true }).click();
  await panel.getByText("How did we do?").waitFor();
  await panel.getByLabel("5 of 5").check({ force: true });
  await panel.getByLabel(/Anything you would like to add/).fill("Quick and kind");
  await panel.getByRole("button", { name: "Send rating" }).click();
  await panel.getByText("Thank you!").waitFor();
  await thread.getByText("Rated 5 of 5: Quick and kind").waitFor();
  await tour.lookInto(anna, "chat-panel-rated");
  const saved = anna.waitForEvent("download");
  await panel.getByRole("button", { name: "Save transcript" }).click();
  const text = await (await saved).createReadStream().then(async (stream) => Buffer.concat(await stream.toArray()).toString());
  must(text.includes("It is on its way") && !text.includes("2019"), "the transcript has messages and no note");
  await anna.keyboard.press("Escape");
  await until("the focus is back", () => anna.evaluate(() => document.activeElement?.id === "tidegate-chat" || document.activeElement === document.body));

  // The changes of the conversation, for supervisors; a status that ends by itself.
  await sarah.evaluate(() => document.activeElement?.blur());
  await sarah.keyboard.press("h");
  const changes = sarah.getByRole("dialog", { name: "Audit" });
  await changes.getByText("conversation.transfer").waitFor();
  await changes.getByText("conversation.change").first().waitFor();
  await changes.getByRole("button", { name: "Close" }).click();
  const status = sarah.getByLabel("My status");
  await status.selectOption("until");
  const pause = sarah.getByRole("dialog", { name: "Busy or away for a while" });
  await pause.getByLabel("Until").selectOption("1h");
  await pause.getByRole("button", { name: "Set" }).click();
  const shown = () => status.evaluate((element) => element.selectedOptions[0].textContent);
  await until("her status shows its end", async () => /^Busy until /.test(await shown()));
  await status.selectOption("online");
  await until("her status has no end", async () => (await shown()) === "Online");

  // The keyboard sheet, and the list by keys.
  await sarah.keyboard.press("Escape");
  await sarah.keyboard.press("Escape");
  await sarah.keyboard.press("?");
  await sarah.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await tour.look(sarah, "desk-console-keys");
  await sarah.keyboard.press("Escape");

  // A page of its own; from right to left; a site that is not allowed shows nothing.
  const alone = await tour.visitor();
  await alone.goto("/chat?lang=de&color=%230f6a43");
  await alone.getByText("Hallo! Wie können wir helfen?").waitFor();
  await tour.look(alone, "chat-page");
  await alone.goto("/chat?lang=ar");
  await alone.getByLabel("Write a message").waitFor();
  must((await alone.evaluate(() => getComputedStyle(document.body).direction)) === "rtl", "from right to left");
  await tour.look(alone, "chat-page-rtl");
  const framed = await fetch(`${tour.other}/widget`);
  const policy = framed.headers.get("content-security-policy");
  must(policy.includes(`frame-ancestors 'self' ${shop}`) && !policy.includes("unsafe"), `the policy of the panel: ${policy}`);
  must(framed.headers.get("x-frame-options") === null, "the older header would forbid every site");
  for (const path of ["/desk/login", "/chat"]) must((await fetch(tour.base + path)).headers.get("x-frame-options") === "DENY", `${path} is not framed`);

  // A user of the site, proved by its server: the same conversation on a second device, and nobody else's.
  const at = String(Math.floor(Date.now() / 1000));
  const proof = (user, secret = SECRET) => ({ user_id: user, email: `${user}@example.org`, name: user, at: Number(at), hmac: createHmac("sha256", secret).update([user, `${user}@example.org`, at].join("\n")).digest("hex") });
  const identified = async (who, options, prepare = async () => {}) => {
    const page = await tour.visitor(options);
    await prepare(page);
    await page.goto(`${shop}/cart`);
    await page.getByRole("button", { name: "Open chat" }).waitFor();
    await page.evaluate((identity) => { window.Tidegate("identify", identity); window.Tidegate("open"); }, who);
    return page;
  };
  // The site is slow to say who it is: nothing is shown before, so nothing that is written can get lost.
  const first = await identified(proof("eva"), undefined, (page) => page.addInitScript(() => {
    const told = new Set();
    addEventListener("message", (event) => {
      if (event.data?.tidegate !== "ready" || told.has(event.data)) return;
      event.stopImmediatePropagation();
      told.add(event.data);
      const { data, origin, source } = event;
      setTimeout(() => dispatchEvent(new MessageEvent("message", { data, origin, source })), 1500);
    });
  }));
  await panelOf(first).getByLabel("Write a message").fill("Is my order on its way?");
  await panelOf(first).getByRole("button", { name: "Send", exact: true }).click();
  await talkOf(panelOf(first)).getByText("Sent", { exact: false }).first().waitFor();
  await first.context().close();
  // On a phone: the panel has the whole screen, and the field is in it.
  const second = await identified(proof("eva"), { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  await talkOf(panelOf(second)).getByText("Is my order on its way?").waitFor();
  const frame = await second.locator("#tidegate-chat iframe").boundingBox();
  must(frame.x === 0 && frame.width === 390 && frame.height >= 840, `the panel on a phone: ${JSON.stringify(frame)}`);
  const field = await panelOf(second).getByLabel("Write a message").boundingBox();
  must(field.y + field.height <= 844, "the field is on the screen");
  await panelOf(second).getByLabel("Write a message").fill("From my phone");
  await panelOf(second).getByRole("button", { name: "Send", exact: true }).click();
  await sarah.getByRole("button", { name: /From my phone/ }).first().waitFor();
  must((await sarah.locator(".tick").count()) > 0, "a proved visitor is marked");
  await second.context().close();
  tour.forgive(/403 \(Forbidden\)/);
  // The refusal arrives before the panel's settings do, and stays on the screen.
  const stranger2 = await identified(proof("eva", "another secret"), undefined, async (page) => {
    const refusal = page.waitForResponse(/\/api\/v1\/widget\/sessions$/);
    await page.route("**/api/v1/widget/config", async (route) => { await refusal; await route.continue(); });
  });
  await panelOf(stranger2).getByText(/proof|identity/i).first().waitFor();
  must((await talkOf(panelOf(stranger2)).getByText("Is my order on its way?").count()) === 0, "a wrong proof opens nothing");
  await stranger2.context().close();
  // Said after the panel was opened: a refusal is seen there, and whoever has no conversation yet can begin one.
  const late = await tour.visitor();
  await late.goto(`${shop}/cart`);
  await late.getByRole("button", { name: "Open chat" }).click();
  await panelOf(late).getByLabel("Write a message").waitFor();
  const identify = (identity) => late.evaluate((who) => window.Tidegate("identify", who), identity);
  await identify(proof("ida", "another secret"));
  await panelOf(late).getByText(/proof|identity/i).first().waitFor();
  // What was begun before stays with whoever wrote it.
  await panelOf(late).getByLabel("Write a message").fill("Good morning");
  await identify(proof("ida"));
  await until("the refusal is gone", async () => (await panelOf(late).getByText(/proof|identity/i).count()) === 0);
  must((await panelOf(late).getByLabel("Write a message").inputValue()) === "Good morning", "a draft outlives an identification");
  await panelOf(late).getByRole("button", { name: "Send", exact: true }).click();
  await talkOf(panelOf(late)).getByText("Sent", { exact: false }).first().waitFor();
  await late.context().close();

  // The supervisor's pages: each shows what it is about, on a phone too.
  for (const [tab, text] of [["now", "Agents"], ["reports", "Volume"], ["agents", "sarah@example.org"], ["hours", "Business hours"], ["canned", "/hello"], ["widget", "widget.js"], ["outbox", "Given up"], ["archive", "SQLite file"]]) {
    await sarah.goto(`/desk/manage#${tab}`);
    await sarah.reload();
    await sarah.getByText(text).first().waitFor();
    await tour.look(sarah, `desk-manage-${tab}`);
  }
  await sarah.goto("/desk/manage#reports");
  await sarah.getByLabel(/^By/).selectOption("tag");
  await sarah.getByRole("cell", { name: "late" }).waitFor();
  const csv = await sarah.evaluate(async () => (await fetch(document.querySelector("a[download]").href)).text());
  must(csv.startsWith("id,created_at,") && csv.includes("parcel late"), `the CSV: ${csv.slice(0, 300)}`);
  const operator = await tour.login();
  await operator.goto("/desk/traffic");
  await operator.getByRole("link", { name: "Support chat" }).click();
  await operator.getByText("Reply targets at risk").waitFor();
  await tour.look(operator, "desk-chat-dashboard");
}
