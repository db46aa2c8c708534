// Runs one scenario by name and says what went wrong.
import { run } from "./harness.mjs";

const [name] = process.argv.slice(2);
const { BASE: base, OTHER: other, GUARD: guard, TOKEN: token, SCREENSHOTS: shots } = process.env;
if (!name || !base || !token || !shots) {
  console.error("usage: BASE=… TOKEN=… SCREENSHOTS=… node run.mjs NAME");
  process.exit(2);
}
const { default: scenario } = await import(`./scenarios/${name}.mjs`);
const problems = await run(name, scenario, { base, other: other || base, guard, token, shots });
for (const problem of problems) console.error(problem);
console.log(problems.length ? "failed" : "done");
process.exit(problems.length ? 1 : 0);
