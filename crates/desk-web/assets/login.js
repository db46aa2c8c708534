// Login of agents, and the invitation with which they set their password.
import { call } from "./link.js";

const form = document.querySelector("form[data-agent]");
const said = form.querySelector("[role=alert]");
const code = form.querySelector("[data-code]");

function say(text) {
  said.textContent = text;
  said.hidden = !text;
}

// A place in the console, never another site.
function next() {
  const hash = new URLSearchParams(location.search).get("next") ?? "";
  return `/desk${/^#[\w/-]*$/.test(hash) ? hash : ""}`;
}

async function logIn(fields) {
  try {
    await call("POST", "/agents/login", { email: fields.email.trim(), password: fields.password, code: fields.code?.replaceAll(" ", "") || undefined });
    location.assign(next());
  } catch (error) {
    if (error.code === "CODE_REQUIRED") {
      const isFirst = code.hidden;
      code.hidden = false;
      say(isFirst ? "" : "This code is wrong or has already been used.");
      code.querySelector("input").focus();
    } else if (error.status === 429) say(`Too many tries. Wait ${error.retryAfter || "a few"} seconds.`);
    else say(error.code === "BAD_CREDENTIALS" ? "The e-mail address or the password is wrong." : error.message);
  }
}

async function accept(fields) {
  if (fields.password !== fields.again) return say("The passwords do not match.");
  try {
    const agent = await call("POST", "/agents/accept", { invitation: form.dataset.invitation, password: fields.password });
    await logIn({ email: agent.email, password: fields.password });
  } catch (error) {
    say(error.code === "BAD_INVITATION" ? "This invitation has expired or has already been used. Ask for a new one." : error.message);
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button[type=submit]");
  button.disabled = true;
  say("");
  const fields = Object.fromEntries(new FormData(form));
  await (form.dataset.agent === "invitation" ? accept(fields) : logIn(fields));
  button.disabled = false;
});
