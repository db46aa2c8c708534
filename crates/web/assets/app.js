// Boots a dashboard page: live parts, actions, charts, keys. No framework, no build step.
import { start as live } from "./live.js";
import { start as actions } from "./act.js";
import { start as charts } from "./chart.js";
import { start as keyboard } from "./keyboard.js";
import { start as firstSteps } from "./first.js";
import { start as palette } from "./palette.js";
import { start as preview } from "./preview.js";
import { start as times } from "./time.js";

actions();
charts();
keyboard();
palette();
firstSteps();
times();
preview();
live();
