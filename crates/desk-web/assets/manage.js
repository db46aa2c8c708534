// The supervisors' pages: now, reports, agents and teams, hours, canned responses, the widget, the outbox, the
// archive. Served to supervisors at /desk/manage, and inside the dashboard at /desk/chat.
import { call } from "./link.js";
import { el } from "./text.js";

const app = document.getElementById("app");
const TABS = [["now", "Now"], ["reports", "Reports"], ["agents", "Agents and teams"], ["hours", "Hours and targets"], ["canned", "Canned responses"], ["widget", "Widget"], ["outbox", "Outbox and webhooks"], ["archive", "Archive"]];
const isInDashboard = app.dataset.place === "dashboard";
let timer = 0, run = 0;

async function ask(method, path, body) {
  try {
    return await call(method, path, body);
  } catch (error) {
    if (error.status === 401) location.assign(isInDashboard ? "/login" : "/desk/login");
    throw error;
  }
}

const button = (word, onclick, kind = "s") => el("button", { type: "button", class: `btn ${kind}`, onclick }, word);
const badge = (word, tone = "") => el("span", { class: `badge ${tone}` }, word);
const TONES = { online: "good", busy: "warn", away: "warn", offline: "" };
const span = (ms) => (ms === null || ms === undefined ? "–" : ms < 60_000 ? `${Math.round(ms / 1000)} s` : ms < 3_600_000 ? `${Math.round(ms / 60_000)} min` : `${(ms / 3_600_000).toFixed(1).replace(".0", "")} h`);
const field = (label, input, hint) => el("label", { class: "field" }, el("span", {}, label), input, hint ? el("small", {}, hint) : null);
const input = (name, value = "", more = {}) => el("input", { name, class: "input", value: String(value ?? ""), ...more });
const card = (title, actions, ...body) => el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", {}, title), actions), el("div", { class: "card-body" }, body));
const tile = (label, value, note = "", kind = "") => el("div", { class: `tile ${kind}` }, el("div", { class: "label" }, label), el("div", { class: "value" }, String(value)), el("div", { class: "note" }, note));
function table(heads, rows, empty) {
  if (!rows.length) return typeof empty === "string" ? el("p", { class: "dim" }, empty) : empty;
  return el("div", { class: "table-wrap", tabindex: "0" }, el("table", { class: "table" }, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell ?? "–")))))));
}

function say(text, isBad = false) {
  const node = el("div", { class: `notice said ${isBad ? "bad" : ""}`, role: isBad ? "alert" : "status" }, text);
  document.querySelector(".notice.said")?.remove();
  app.querySelector(".tabs")?.after(node);
}

// A dialog with a form; `work` gets the fields, and an error of it is shown in the dialog.
function form(title, fields, verb, work) {
  const wrong = el("div", { class: "notice bad", role: "alert", hidden: true });
  const body = el("form", { class: "dialog-body" }, el("h2", {}, title), wrong, fields, el("div", { class: "dialog-foot" }, button("Cancel", () => box.close(), ""), el("button", { type: "submit", class: "btn primary" }, verb)));
  const box = el("dialog", { "aria-label": title }, body);
  body.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await work(Object.fromEntries(new FormData(body)));
      box.close();
      show();
    } catch (error) {
      wrong.textContent = error.message;
      wrong.hidden = false;
    }
  });
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

// ---- now ---------------------------------------------------------------------------------------------------------

const personOf = (one) => one.visitor.name || one.visitor.email || `Visitor ${String(one.visitor.id).slice(-4)}`;
const linkTo = (one) => el("a", { href: `/desk#all/${one.id}` }, personOf(one));
const priority = (one) => badge(one.priority, { urgent: "bad", high: "warn" }[one.priority]);

// A bar for a share, with the numbers beside it.
function share(part, whole) {
  const meter = el("meter", { min: "0", max: String(whole), value: String(Math.min(part, whole)), high: String(whole * 0.85), optimum: "0", "aria-label": `${part} of ${whole}` });
  return el("span", { class: "share" }, meter, `${part} of ${whole}`);
}

async function now() {
  const [dashboard, waiting, open] = await Promise.all([ask("GET", "/dashboard"), ask("GET", "/waiting?limit=20"), ask("GET", "/conversations?view=all&sort=urgency&limit=200")]);
  const { totals } = dashboard, risky = open.items.filter((one) => ["at_risk", "breached"].includes(one.sla?.state)).slice(0, 20);
  const rank = { online: 0, busy: 1, away: 2, offline: 3 };
  const agents = dashboard.agents.toSorted((a, b) => rank[a.status] - rank[b.status] || (a.agent.name < b.agent.name ? -1 : 1));
  timer = setTimeout(show, 5000, true);
  return [
    el("div", { class: "tiles" }, tile("Waiting", totals.waiting, totals.waiting ? "for an agent" : "nobody"), tile("Oldest waiting", span(dashboard.oldest_waiting_ms)), tile("Open", totals.open, `${totals.assigned} assigned, ${totals.unread} unread`), tile("Resolved today", totals.resolved_today), tile("First reply", span(dashboard.first_reply_ms), "mean of 24 hours"), tile("SLA at risk", totals.sla_at_risk, totals.sla_at_risk ? "at risk or late" : "all on time", totals.sla_at_risk ? "is-warn" : "")),
    card("Agents", null, table(["Agent", "Status", "Load"], agents.map((one) => [one.agent.name, badge(one.status, TONES[one.status]), share(one.load, one.capacity)]), nobody())),
    card("Waiting", null, table(["Visitor", "Priority", "Waiting", "Position"], waiting.items.map(({ conversation, position, waited_ms }) => [linkTo(conversation), priority(conversation), span(waited_ms), String(position)]), "Nobody is waiting.")),
    card("Reply targets at risk", null, table(["Visitor", "Priority", "Agent", "State", "Due"], risky.map((one) => [linkTo(one), priority(one), one.assignee?.name ?? "nobody", badge(one.sla.state === "breached" ? "late" : "at risk", one.sla.state === "breached" ? "bad" : "warn"), when(one.sla.due_at)]), "Every reply is on time.")),
  ];
}

const nobody = () => el("div", { class: "empty" }, el("h3", {}, "There is no agent yet"), el("p", {}, "Add the first one: the link you get lets them choose a password."), el("a", { class: "btn primary", href: "#agents" }, "Add an agent"));

// ---- reports -------------------------------------------------------------------------------------------------------

const day = (date) => date.toISOString().slice(0, 10);
const range = { from: day(new Date(Date.now() - 29 * 86_400_000)), to: day(new Date()), group: "day" };

const GROUPS = [["day", "Day"], ["agent", "Agent"], ["tag", "Tag"]];
const SVG = "http://www.w3.org/2000/svg";
function shape(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}

// Two bars a day: new and resolved. Days without anything have a place, too.
function chart(items) {
  const days = [], known = new Map(items.map((one) => [one.key, one]));
  for (let at = Date.parse(range.from); at <= Date.parse(range.to) && days.length < 400; at += 86_400_000) days.push(day(new Date(at)));
  const most = Math.max(1, ...items.flatMap((one) => [one.created, one.resolved])), high = 100, wide = days.length * 10;
  const bars = days.flatMap((key, n) => {
    const one = known.get(key) ?? { created: 0, resolved: 0 };
    const bar = (value, x, kind) => shape("rect", { class: `bar ${kind}`, x: n * 10 + x, width: 3.6, y: high - (value / most) * high, height: (value / most) * high });
    return shape("g", {}, shape("title", {}, `${key}: ${one.created} new, ${one.resolved} resolved`), shape("rect", { x: n * 10, y: 0, width: 10, height: high, fill: "transparent" }), bar(one.created, 1, "c1"), bar(one.resolved, 5.200, "c2"));
  });
  return el("figure", { class: "volume" }, shape("svg", { viewBox: `0 0 ${wide} ${high}`, preserveAspectRatio: "none", class: "bars", role: "img", "aria-label": `New and resolved conversations from ${range.from} to ${range.to}; at most ${most} a day` }, ...bars),
    el("figcaption", {}, el("span", {}, range.from), el("span", { class: "legend" }, el("i", { class: "c1" }), "New", el("i", { class: "c2" }), "Resolved", el("span", { class: "dim" }, `highest: ${most}`)), el("span", {}, range.to)));
}

const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(value)} %`);
const mean = (items, value, weight) => {
  const some = items.filter((one) => one[value] !== null && one[value] !== undefined && one[weight]);
  const sum = some.reduce((all, one) => all + one[weight], 0);
  return sum ? some.reduce((all, one) => all + one[value] * one[weight], 0) / sum : null;
};

async function reports() {
  const end = new Date(`${range.to}T00:00:00Z`);
  end.setUTCDate(end.getUTCDate() + 1);
  const time = { from: `${range.from}T00:00:00Z`, to: end.toISOString() };
  const [{ groups: items }, { groups: days }] = await Promise.all([range.group, "day"].map((group) => ask("GET", `/reports?${new URLSearchParams({ ...time, group })}`)));
  const set = (name) => (event) => { if (event.target.value) { range[name] = event.target.value; show(); } };
  const heads = [GROUPS.find(([key]) => key === range.group)[1], "New", "Resolved", "Replies", "First reply", "Next reply", "Resolution", "Ratings", "Rating", "In time"];
  const sum = (name) => days.reduce((all, one) => all + one[name], 0), rating = mean(days, "rating", "ratings");
  const csv = el("a", { class: "btn s", href: `/api/v1/reports/conversations?${new URLSearchParams(time)}`, download: "" }, "CSV, one row per conversation");
  return [
    el("div", { class: "range" }, field("From", input("from", range.from, { type: "date", max: range.to, onchange: set("from") })), field("To", input("to", range.to, { type: "date", min: range.from, onchange: set("to") })),
      field("By", el("select", { class: "input", onchange: set("group") }, GROUPS.map(([key, word]) => el("option", { value: key, selected: key === range.group }, word)))), csv),
    el("div", { class: "tiles" }, tile("New", sum("created")), tile("Resolved", sum("resolved")), tile("First reply", span(mean(days, "first_reply_ms", "replies")), "mean"), tile("Resolution", span(mean(days, "resolution_ms", "resolved")), "mean"), tile("Rating", rating === null ? "–" : rating.toFixed(1), `${sum("ratings")} ${sum("ratings") === 1 ? "rating" : "ratings"}`), tile("In time", percent(mean(days, "in_time_percent", "replies")), "of replies with a target")),
    card("Volume", null, chart(days)),
    card(`By ${range.group}`, null, table(heads, items.map((one) => [one.name ?? (one.key || "nobody"), one.created, one.resolved, one.replies, span(one.first_reply_ms), span(one.next_reply_ms), span(one.resolution_ms), one.ratings, one.rating === null ? "–" : Number(one.rating).toFixed(1), percent(one.in_time_percent)].map((value) => (value === null || value === undefined ? "–" : String(value)))), range.group === "tag" ? "No conversation of this time has a tag. Agents add them with L." : "Nothing happened in this time.")),
  ];
}

// ---- agents and teams --------------------------------------------------------------------------------------------------

function invitationBox({ agent, invitation, emailed }) {
  const address = `${location.origin}/desk/invitation/${String(invitation).split("/").at(-1)}`;
  const box = el("dialog", { "aria-label": "Invitation" }, el("div", { class: "dialog-body" }, el("h2", {}, `Invitation for ${agent.name}`), el("p", {}, emailed ? `It is sent to ${agent.email}. You can also hand over this link, which is shown only now.` : "Send this link to them. It is shown only now."), el("pre", { class: "code", tabindex: "0" }, address),
    el("div", { class: "dialog-foot" }, button("Copy", () => navigator.clipboard?.writeText(address).then(() => say("Copied"), () => {}), ""), button("Close", () => box.close(), "primary"))));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

function agentForm(agent, teams) {
  const fields = [field("Name", input("name", agent?.name, { required: true, maxlength: "100" })), field("E-mail", input("email", agent?.email, { type: "email", required: true, maxlength: "254" })),
    field("Role", el("select", { name: "role", class: "input" }, ["agent", "supervisor"].map((role) => el("option", { value: role, selected: agent?.role === role }, role)))),
    field("Capacity", input("capacity", agent?.capacity ?? 10, { type: "number", min: "1", max: "100", required: true }), "Conversations at a time."),
    field("Skills", input("skills", agent?.skills?.join(", ")), "Tags of the conversations they take, separated by commas."),
    field("Teams", el("select", { name: "team_ids", class: "input", multiple: true, size: String(Math.min(4, Math.max(2, teams.length))) }, teams.map((team) => el("option", { value: team.id, selected: agent?.team_ids?.includes(team.id) }, team.name))))];
  form(agent ? `Change ${agent.name}` : "Add an agent", fields, agent ? "Save" : "Add", async (found) => {
    const picked = [...document.querySelector("dialog select[name=team_ids]").selectedOptions].map((option) => option.value);
    const body = { name: found.name.trim(), email: found.email.trim(), role: found.role, capacity: Number(found.capacity), skills: found.skills.split(",").map((skill) => skill.trim()).filter(Boolean), team_ids: picked };
    if (agent) await ask("PATCH", `/agents/${agent.id}`, body);
    else {
      const made = await ask("POST", "/agents", body);
      setTimeout(() => invitationBox(made));
    }
  });
}

const DAYS = [["mon", "Monday"], ["tue", "Tuesday"], ["wed", "Wednesday"], ["thu", "Thursday"], ["fri", "Friday"], ["sat", "Saturday"], ["sun", "Sunday"]];
function teamForm(team) {
  const hours = team?.hours;
  const fields = [field("Name", input("name", team?.name, { required: true, maxlength: "100" })), field("Time zone", input("time_zone", hours?.time_zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone)),
    ...DAYS.map(([key, word]) => field(word, input(key, (hours?.week?.[key] ?? []).map((part) => part.join("-")).join(", "), { placeholder: "09:00-12:00, 13:00-17:00" }))), field("Holidays", input("holidays", hours?.holidays?.join(", "), { placeholder: "2026-12-25" }), "Without any hours, the team is always open.")];
  form(team ? `Change ${team.name}` : "Add a team", fields, team ? "Save" : "Add", async (found) => {
    const week = {};
    for (const [key] of DAYS) {
      const parts = found[key].split(",").map((part) => part.trim()).filter(Boolean).map((part) => part.split("-").map((time) => time.trim()));
      if (parts.length) week[key] = parts;
    }
    const body = { name: found.name.trim(), hours: Object.keys(week).length ? { time_zone: found.time_zone.trim(), week, holidays: found.holidays.split(",").map((one) => one.trim()).filter(Boolean) } : null };
    await ask(team ? "PATCH" : "POST", team ? `/teams/${team.id}` : "/teams", body);
  });
}

const PRIORITIES = ["urgent", "high", "normal", "low"];
function slaForm(sla) {
  const minutes = (priority, name) => input(`${priority} ${name}`, sla[priority][name] / 60, { type: "number", min: "0", max: "43200", step: "any", required: true });
  const fields = PRIORITIES.flatMap((priority) => [field(`${priority}: first reply`, minutes(priority, "first_reply_seconds")), field(`${priority}: every further reply`, minutes(priority, "next_reply_seconds"))]);
  form("Reply targets", [el("p", {}, "In minutes of business time; 0 means no target. Changes count for messages from now on."), ...fields], "Save", (found) => {
    const body = Object.fromEntries(PRIORITIES.map((priority) => [priority, {}]));
    for (const [key, value] of Object.entries(found)) { const [priority, name] = key.split(" "); body[priority][name] = Math.round(Number(value) * 60); }
    return ask("PUT", "/sla", body);
  });
}
const target = (seconds) => (seconds ? span(seconds * 1_000) : "none");

async function agents() {
  const [found, teams] = await Promise.all([ask("GET", "/agents"), ask("GET", "/teams")]);
  const names = new Map(teams.items.map((team) => [team.id, team.name]));
  const invite = async (agent) => {
    if (!confirm(`Make a new invitation for ${agent.name}? It ends their sessions and their password.`)) return;
    try { const made = await ask("POST", `/agents/${agent.id}/invitation`); invitationBox(made); } catch (error) { say(error.message, true); }
  };
  const disable = (agent) => ask("PATCH", `/agents/${agent.id}`, { disabled: !agent.disabled }).then(() => show(), (error) => say(error.message, true));
  const none = el("div", { class: "empty" }, el("h3", {}, "There is no agent yet"), el("p", {}, "Add the first one: the link you get lets them choose a password."));
  return [
    card("Agents", button("Add an agent", () => agentForm(null, teams.items), "primary s"), table(["Name", "E-mail", "Role", "Capacity", "Skills", "Teams", "State", ""], found.items.map((agent) => [agent.name, agent.email, agent.role, String(agent.capacity), agent.skills.join(", ") || "–", agent.team_ids.map((id) => names.get(id) ?? id).join(", ") || "–", agent.disabled ? badge("disabled", "bad") : agent.has_password ? badge(agent.has_totp ? "two factors" : "password", "good") : badge("invited", "warn"),
      el("span", { class: "actions" }, button("Change", () => agentForm(agent, teams.items)), button("New invitation", () => invite(agent)), button(agent.disabled ? "Enable" : "Disable", () => disable(agent)))]), none)),
    card("Teams", button("Add a team", () => teamForm(null), "primary s"), table(["Name", "Agents", ""], teams.items.map((team) => [team.name, String(found.items.filter((agent) => agent.team_ids.includes(team.id) && !agent.disabled).length),
      el("span", { class: "actions" }, button("Change", () => teamForm(team)), button("Delete", () => confirm(`Delete the team ${team.name}? Its conversations are for everybody then.`) && ask("DELETE", `/teams/${team.id}`).then(() => show(), (error) => say(error.message, true)), "s danger"))]), "No teams: every agent answers every conversation.")),
  ];
}

// ---- hours and reply targets ------------------------------------------------------------------------------------------------

async function hours() {
  const [teams, sla] = await Promise.all([ask("GET", "/teams"), ask("GET", "/sla")]);
  const open = (team, key) => (team.hours?.week?.[key] ?? []).map((part) => part.join("–")).join(", ");
  const isAlways = (team) => DAYS.every(([key]) => !open(team, key));
  return [
    card("Business hours", teams.items.length ? null : button("Add a team", () => teamForm(null), "primary s"), el("p", { class: "dim" }, "Outside them the widget takes a message instead of promising a chat, and the time to reply stands still."),
      table(["Team", ...DAYS.map(([, word]) => word.slice(0, 3)), "Time zone", "Holidays", ""], teams.items.map((team) => [team.name, ...DAYS.map(([key]) => (isAlways(team) ? "always" : open(team, key) || "closed")), team.hours?.time_zone ?? "UTC", team.hours?.holidays?.join(", ") || "–", button("Change", () => teamForm(team))]), "Hours belong to teams. Without a team the desk is open while an agent is there.")),
    card("Reply targets", button("Change", () => slaForm(sla), "primary s"), table(["Priority", "First reply within", "Every further reply within"], PRIORITIES.map((priority) => [priority, target(sla[priority].first_reply_seconds), target(sla[priority].next_reply_seconds)]), "")),
  ];
}

// ---- canned responses ----------------------------------------------------------------------------------------------------

function cannedForm(one) {
  form(one ? `Change /${one.short_code}` : "Add a canned response", [field("Short code", input("short_code", one?.short_code, { required: true, maxlength: "40" }), "Agents type / followed by this."), field("Text", el("textarea", { name: "content", class: "input", rows: "6", required: true, maxlength: "4000" }, one?.content ?? ""), "{{visitor.name}}, {{visitor.email}} and {{agent.name}} are filled in; {{visitor.name|there}} has a word for when it is unknown.")], one ? "Save" : "Add",
    (found) => ask(one ? "PATCH" : "POST", one ? `/canned/${one.id}` : "/canned", { short_code: found.short_code.trim(), content: found.content }));
}

async function canned() {
  const { items } = await ask("GET", "/canned");
  return [card("Canned responses", button("Add one", () => cannedForm(null), "primary s"), table(["Short code", "Text", ""], items.map((one) => [el("code", {}, `/${one.short_code}`), el("span", { class: "clamp" }, one.content), el("span", { class: "actions" }, button("Change", () => cannedForm(one)), button("Delete", () => confirm(`Delete /${one.short_code}?`) && ask("DELETE", `/canned/${one.id}`).then(() => show(), (error) => say(error.message, true)), "s danger"))]), "None yet."))];
}

// ---- the widget -------------------------------------------------------------------------------------------------------------

const look = { color: "#08667d", lang: "", position: "right", theme: "", greeting: "", consent: "" };
function snippet() {
  const quote = (text) => text.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");
  const attributes = Object.entries(look).filter(([key, value]) => value && !(key === "position" && value === "right")).map(([key, value]) => ` data-${key}="${quote(value)}"`).join("");
  return `<script src="${location.origin}/widget.js" async${attributes}></script>`;
}

async function widget() {
  const code = el("pre", { class: "code", tabindex: "0" }, snippet());
  const preview = () => {
    code.textContent = snippet();
    window.Tidegate?.("shutdown");
    window.Tidegate?.("boot", { ...look });
  };
  const set = (name) => (event) => { look[name] = event.target.value; preview(); };
  const pick = (name, options) => el("select", { class: "input", onchange: set(name) }, options.map(([key, word]) => el("option", { value: key, selected: look[name] === key }, word)));
  if (!window.Tidegate) document.head.append(el("script", { src: "/widget.js", "data-color": look.color }));
  else window.Tidegate("boot", { ...look });
  return [card("Widget", el("span", { class: "actions" }, button("Open the preview", () => window.Tidegate?.("open")), button("Copy", () => navigator.clipboard?.writeText(snippet()).then(() => say("Copied"), () => say("Copy it by hand: the browser does not allow copying here.", true)))),
    el("p", {}, "Put this line into the pages of your site. The button at the bottom right is the widget as it will be. ", "Sites that may show it are in the setting ", el("code", {}, "desk.widget_origins"), "."), code,
    el("div", { class: "form-row" }, field("Colour", input("color", look.color, { type: "color", oninput: set("color") })), field("Language", pick("lang", [["", "as the page"], ["en", "English"], ["de", "Deutsch"], ["es", "Español"]])), field("Side", pick("position", [["right", "right"], ["left", "left"]])), field("Theme", pick("theme", [["", "as the system"], ["light", "light"], ["dark", "dark"]])),
      field("Greeting", input("greeting", look.greeting, { maxlength: "300", onchange: set("greeting") })), field("Consent", input("consent", look.consent, { maxlength: "300", onchange: set("consent") }), "A box visitors must tick before the first message.")),
    el("p", {}, "Without a site: ", el("a", { href: "/chat" }, `${location.origin}/chat`)))];
}

// ---- the outbox ------------------------------------------------------------------------------------------------------------

const KINDS = { reply: "Answer", transcript: "Transcript", invitation: "Invitation", push: "Notification" };
const when = (at) => (at ? new Date(at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "–");

async function outbox() {
  const [dead, waiting] = await Promise.all([ask("GET", "/outbox?state=dead&limit=100"), ask("GET", "/outbox?state=waiting&limit=100")]);
  const act = (work, done) => work.then(() => { say(done); show(); }, (error) => say(error.message, true));
  const resend = (one) => ask("POST", `/outbox/${one.id}/resend`);
  const cells = (one) => [KINDS[one.kind] ?? one.kind, one.to || "–", one.conversation_id ? el("a", { href: `/desk#all/${one.conversation_id}` }, "open") : "–", String(one.attempts), el("span", { class: "clamp" }, one.error ?? "–")];
  const buttons = (one, verb) => el("span", { class: "actions" }, button(verb, () => act(resend(one), "Sending now")), button("Delete", () => confirm("Delete it? It will not be sent.") && act(ask("DELETE", `/outbox/${one.id}`), "Deleted"), "s danger"));
  const all = dead.items.length > 1 ? button("Send all again", () => act(Promise.all(dead.items.map(resend)), "Sending now")) : null;
  return [
    card("Given up", all, table(["What", "To", "Conversation", "Attempts", "Reason", "Since", ""], dead.items.map((one) => [...cells(one), when(one.created_at), buttons(one, "Send again")]), "No dead letters.")),
    card("Waiting", null, table(["What", "To", "Conversation", "Attempts", "Last error", "Next attempt", ""], waiting.items.map((one) => [...cells(one), when(one.due_at), buttons(one, "Send now")]), "Nothing is waiting to be sent.")),
    card("Webhooks", null, el("p", {}, "Their deliveries and dead letters are on the dashboard, under ", el("a", { href: "/webhooks" }, "Webhooks"), ".")),
  ];
}

// ---- the archive -----------------------------------------------------------------------------------------------------------

const size = (bytes) => (bytes < 1e3 ? `${bytes} B` : bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`);
const count = (number) => number.toLocaleString();

async function archive() {
  const found = await ask("GET", "/dashboard/archive");
  const age = found.last_backup_at ? (Date.now() - Date.parse(found.last_backup_at)) / 86_400_000 : null;
  const facts = [["Kind", found.kind === "sqlite" ? "SQLite file" : "Postgres"], ["Place", found.place], ["Id", found.id], ["Version of its tables", String(found.schema)], ["Resolved conversations are deleted", found.retention_seconds ? `after ${span(found.retention_seconds * 1000)}` : "never (desk.retention)"], ["Last backup", found.last_backup_at ? when(found.last_backup_at) : "none was made with this program"]];
  return [
    el("div", { class: "tiles" }, tile("Size", size(found.bytes)), tile("Conversations", count(found.open_conversations + found.resolved_conversations), `${count(found.open_conversations)} open`), tile("Messages", count(found.messages)), tile("Visitors", count(found.visitors)), tile("Files", count(found.files), size(found.file_bytes)), tile("Last backup", age === null ? "none" : age < 1 ? "today" : `${Math.floor(age)} d ago`, "", age === null || age > 7 ? "is-warn" : "")),
    card("Archive", null, el("dl", { class: "facts" }, facts.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]))),
    card("Tools", null, el("p", {}, "Run these on the machine of the server. It may run meanwhile, except during a move."),
      el("pre", { class: "code", tabindex: "0" }, ["tidegate desk archive check", "tidegate desk archive backup /backup/desk-$(date +%F)", "tidegate desk archive move postgres://user:password@host/database", "tidegate desk export --to desk.jsonl"].join("\n"))),
  ];
}

// ---- frame -----------------------------------------------------------------------------------------------------------------

const PAGES = { now, reports, agents, hours, canned, widget, outbox, archive };
async function show(isQuiet = false) {
  clearTimeout(timer);
  const here = location.hash.slice(1) in PAGES ? location.hash.slice(1) : "now", mine = (run += 1);
  if (here !== "widget") window.Tidegate?.("shutdown");
  const title = TABS.find(([key]) => key === here)[1];
  const tabs = el("nav", { class: "tabs", "aria-label": "Support chat" }, TABS.map(([key, word]) => el("a", { href: `#${key}`, "aria-current": key === here ? "page" : null }, word)));
  const links = el("span", { class: "actions" }, el("a", { class: "btn s", href: "/desk" }, "Open the console"));
  const head = isInDashboard ? null : el("div", { class: "page-head" }, el("div", { class: "titles" }, el("h1", {}, title)), links);
  try {
    const body = await PAGES[here]();
    if (mine !== run) return;
    const stack = app.querySelector(":scope > .stack");
    if (isQuiet && stack) {
      // By the clock: what is being read, typed or pointed at stays where it is.
      const fresh = el("div", { class: "stack" }, body);
      const focused = stack.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      if (fresh.innerHTML !== stack.innerHTML) stack.replaceWith(fresh);
      if (focused) [...app.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus({ preventScroll: true });
      return;
    }
    const told = app.querySelector(".notice.said");
    app.replaceChildren(...[head, tabs, el("div", { class: "stack" }, body)].filter(Boolean));
    document.title = `${title} · Desk · Tidegate`;
    tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (told) { tabs.after(told); setTimeout(() => told.remove(), 4000); }
  } catch (error) {
    if (mine !== run || error.status === 401) return;
    if (isQuiet) { timer = setTimeout(show, 5000, true); return; }
    app.replaceChildren(tabs, el("div", { class: "notice bad", role: "alert" }, error.status === 403 ? "This page is for supervisors. " : `${error.message}. `, error.status === 403 ? el("a", { href: "/desk" }, "Go to the console") : button("Try again", () => show())));
  }
}

addEventListener("hashchange", () => show());
show();
