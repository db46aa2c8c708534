// The first-run card: commands with the address of this server and a token, which is made when asked for.
import { act, toast, copyText } from "./act.js";

let token = "";

export function start() {
  fill();
  document.addEventListener("live:shown", fill);
  document.addEventListener("click", async (event) => {
    const copier = event.target.closest?.("[data-copy-command]");
    if (copier) return copyText(copier.closest("li").querySelector("[data-command]").textContent);
    const button = event.target.closest?.("[data-first-token]");
    if (!button) return;
    button.disabled = true;
    try {
      const made = await act("POST /api/v1/tokens", { name: "first steps", role: "admin" });
      token = made.secret ?? made.token;
      fill();
      toast("The lines below have the token now. It is shown nowhere else.");
    } catch (error) {
      button.disabled = false;
      toast(error.message, true);
    }
  });
}

function fill() {
  for (const place of document.querySelectorAll("[data-command]")) {
    const text = place.dataset.command.replaceAll("{server}", location.origin).replaceAll("{token}", token || "TOKEN");
    if (place.textContent !== text) place.textContent = text;
  }
}
