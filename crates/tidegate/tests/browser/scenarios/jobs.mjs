// Jobs in every state: lists, filters, one job with its story, acts on one and on many.
import { must, until } from "../harness.mjs";

export default async function (tour) {
  const page = await tour.login();
  await page.goto("/jobs");
  await page.getByText("No dead letters").waitFor();
  await tour.look(page, "jobs-empty");

  const dispatch = (job) => tour.api("POST", "/api/v1/jobs", job);
  const worker = await tour.tokenOf("worker");
  const claim = (types, limit = 1) => tour.api("POST", "/api/v1/jobs/claim", { worker_id: "press-1", types, limit, wait_ms: 5000, capabilities: ["pdf"], region: "eu" }, worker);
  for (let n = 0; n < 12; n += 1) await dispatch({ type: "email.send", payload: { to: `guest-${n}@mail.example`, password: "hunter2" }, retry: { attempts: 0 } });
  await dispatch({ type: "fax.send", target: { capabilities: ["fax"] } });
  await dispatch({ type: "report", delay_ms: 3_600_000 });
  await tour.api("PUT", "/api/v1/jobs/schedules/nightly", { type: "clean-up", cron: "30 3 * * *", timezone: "Europe/Berlin" });

  // One runs, one succeeds, two fail for good.
  const { items: leases } = await claim(["email.send"], 4);
  must(leases.length === 4, `four were claimed, not ${leases.length}`);
  const jobs = leases.map(({ job, token }) => ({ id: job.id, token }));
  const say = (job, verb, body) => tour.api("POST", `/api/v1/jobs/${job.id}/${verb}`, { worker_id: "press-1", token: job.token, ...body }, worker);
  await say(jobs[0], "progress", { percent: 40, message: "page 2 of 5" });
  await say(jobs[1], "complete", { result: { pages: 5 } });
  for (const job of jobs.slice(2)) await say(job, "fail", { error: { name: "SmtpError", message: "550 <script>alert(1)</script> no such mailbox" } });

  await page.goto("/jobs");
  await page.getByText("no live worker matches").waitFor();
  await page.getByText("page 2 of 5").waitFor();
  await until("both dead letters are told", async () => (await page.getByText("550 <script>").count()) === 2);
  await tour.look(page, "jobs");

  // Lists and filters.
  const tab = (name) => page.getByRole("navigation", { name: "Jobs" }).getByRole("link", { name });
  await tab(/^Waiting/).click();
  await page.getByText("9 jobs").waitFor();
  await page.getByLabel("Find jobs by text").fill("guest-7@");
  await page.getByRole("button", { name: "Find", exact: true }).click();
  await page.getByText("1 job", { exact: true }).waitFor();
  await tour.look(page, "jobs-found");
  await tab(/^Delayed/).click();
  await page.getByRole("link", { name: "report" }).waitFor();
  await tab(/^Active/).click();
  await page.getByRole("link", { name: "email.send" }).waitFor();
  await tab(/^Finished/).click();
  await page.getByText("completed").first().waitFor();
  await tour.look(page, "jobs-finished");

  // A job done at the first try says so.
  must((await page.locator("tbody tr", { hasText: "completed" }).locator("[data-label=Attempts]").innerText()) === "1 of 1", "one try of one");

  // Lists live: counts at once, rows when nobody points at them or has chosen some.
  await tab(/^Delayed/).click();
  await page.getByRole("link", { name: "report" }).waitFor();
  const count = (name) => tab(name).locator(".count").innerText();
  const rows = page.locator("tbody tr");
  await page.mouse.move(0, 0);
  await dispatch({ type: "later", delay_ms: 3_600_000 });
  await until("the new job shows up by itself", async () => (await rows.count()) === 2 && (await count(/^Delayed/)) === "2");
  await page.locator("input.pick").first().check();
  const chosen = await page.locator("input.pick").first().inputValue();
  await dispatch({ type: "soonest", delay_ms: 1_800_000 });
  await until("the count goes on", async () => (await count(/^Delayed/)) === "3");
  await page.mouse.move(0, 0);
  await page.getByText("1 selected").waitFor();
  must((await rows.count()) === 2, "the rows stand still");
  must((await page.locator("input.pick").first().inputValue()) === chosen, "the chosen row is where it was");
  must(await page.locator("input.pick").first().isChecked(), "and still chosen");
  await page.locator("input.pick").first().uncheck();
  await page.mouse.move(0, 0);
  await until("the rows catch up", async () => (await rows.count()) === 3);
  for (const type of ["later", "soonest"]) await tour.api("POST", "/api/v1/jobs/cancel", { state: "delayed", type });

  // Dead letters are counted by error, tell why they are there, and are replayed, all at once.
  await tab(/^Dead/).click();
  const group = page.getByRole("region", { name: "By error" }).locator("tbody tr");
  must((await group.count()) === 1, "two of the same error are one group");
  must((await group.locator("[data-label=Jobs]").innerText()) === "2", "of two jobs");
  must((await page.locator("[data-steady] [data-label=Reason]").first().innerText()) === "Attempts used", "the true reason");
  await page.getByLabel("Select all on this page").check();
  await page.getByText("2 selected").waitFor();
  await tour.look(page, "jobs-dead");
  await page.locator(".bulk").getByRole("button", { name: "Replay", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Replay" }).click();
  await page.getByRole("status").getByText("Requeued: 2").waitFor();
  await page.getByText("No dead letters").waitFor();
  must((await tour.api("GET", "/api/v1/jobs/stats")).waiting === 11, "both are in line again");

  // One job: its story, its payload without secrets; cancel it.
  await page.goto(`/jobs/job/${jobs[0].id}`);
  await page.getByText("40 %").waitFor();
  must(!(await page.content()).includes("hunter2"), "a password is not shown");
  await tour.look(page, "job-running");
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel it" }).click();
  await page.getByText("Cancelled").filter({ visible: true }).first().waitFor();
  await page.goto(`/jobs/job/${jobs[1].id}`);
  await page.locator(".timeline").getByText("Completed").waitFor();
  await tour.look(page, "job-done");
  await page.getByRole("button", { name: "Replay" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Replay" }).click();
  await until("it waits again", async () => (await page.locator(".badge", { hasText: "waiting" }).count()) > 0);
  await page.goto(`/jobs/job/${jobs[2].id}`);
  await page.getByText("Attempt 1 failed").waitFor();
  await page.getByRole("region", { name: "Attempts" }).getByText("press-1").first().waitFor();
  await tour.look(page, "job-failed");

  // Cancel many that wait.
  await page.goto("/jobs/waiting?type=email.send");
  await page.getByLabel("Select all on this page").check();
  await page.getByRole("button", { name: "Cancel", exact: true }).first().click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel", exact: true }).last().click();
  await page.getByText(/Cancelled \d+/).waitFor();
  await page.getByText("No match").waitFor();

  // Types, schedules, workers, jobs nobody can take.
  await page.goto("/jobs");
  await page.locator("tr", { hasText: "fax.send" }).getByRole("button", { name: "Pause" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
  await page.locator("tr", { hasText: "fax.send" }).getByRole("button", { name: "Resume" }).waitFor();
  await tab(/^Schedules/).click();
  await page.getByText(/at 03:30/).first().waitFor();
  await page.getByRole("button", { name: "Run now" }).click();
  await page.getByText(/^waiting/).first().waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Resume" }).waitFor();
  await tour.look(page, "jobs-schedules");
  await tab(/^Workers/).click();
  await page.getByText("press-1").waitFor();
  await page.getByRole("button", { name: "Drain" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Drain" }).click();
  await page.getByRole("button", { name: "Resume" }).waitFor();
  must((await claim(["email.send"])).draining === true, "a drained worker gets nothing");
  await tour.look(page, "jobs-workers");
  await tab("Unroutable").click();
  await page.getByText("capability fax").waitFor();
  await tour.look(page, "jobs-unroutable");

  // A dead letter runs again with another payload, which keeps every digit.
  const late = await dispatch({ type: "big", payload: { order: 1 }, retry: { attempts: 0 } });
  const { items: [big] } = await tour.api("POST", "/api/v1/jobs/claim", { worker_id: "press-2", types: ["big"], wait_ms: 5000 }, worker);
  await tour.api("POST", `/api/v1/jobs/${late.id}/fail`, { worker_id: "press-2", token: big.token, error: { message: "no" } }, worker);
  await page.goto(`/jobs/job/${late.id}`);
  await page.getByRole("link", { name: "Edit and replay" }).click();
  await page.getByLabel(/^JSON/).fill('{"order": 12345678901234567890}');
  await tour.look(page, "job-edit");
  await page.getByRole("button", { name: "Replay" }).click();
  await page.waitForURL(`**/jobs/job/${late.id}`);
  const stored = await (await fetch(`${tour.base}/api/v1/jobs/${late.id}`, { headers: { authorization: `Bearer ${tour.token}` } })).text();
  must(stored.includes("12345678901234567890"), "the payload was sent digit for digit");

  const viewer = await tour.login(await tour.tokenOf("viewer"));
  await viewer.goto(`/jobs/job/${jobs[2].id}`);
  await viewer.getByRole("heading", { name: "Timeline" }).waitFor();
  must((await viewer.getByRole("button", { name: /Cancel$|Replay/ }).count()) === 0, "a viewer has no acts");
}
