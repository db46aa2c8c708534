// Stored pictures of pages, compared with a small tolerance. The font comes with the tests, so that machines agree;
// what differs each time (times, counts, ids, charts) is made the same before a picture is taken.
//
//   UPDATE_PICTURES=1    renews the pictures in pictures/; look at them before you commit them
//
// A picture that differs leaves itself and the difference in the folder of screenshots.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import pixelmatch from "pixelmatch";
import { PNG } from "pngjs";

const here = dirname(fileURLToPath(import.meta.url));
const kept = join(here, "pictures");
const require = createRequire(import.meta.url);
const MODES = {
  light: { viewport: { width: 1280, height: 800 }, colorScheme: "light" },
  dark: { viewport: { width: 1280, height: 800 }, colorScheme: "dark" },
  phone: { viewport: { width: 390, height: 844 }, colorScheme: "light" },
};
// Pictures are half as large as the screen: small in the tree, and good enough to see what moved.
export const SCALE = 0.5;
// The share of pixels that may differ: letters are drawn a little differently by each version of the browser.
const TOLERANCE = 0.006;

const font = (file) => readFileSync(require.resolve(file)).toString("base64");
const face = (name, weight, file) =>
  `@font-face{font-family:"${name}";font-weight:${weight};src:url(data:font/woff2;base64,${font(file)}) format("woff2")}`;
const STYLE = [
  face("Picture Sans", 400, "@fontsource/inter/files/inter-latin-400-normal.woff2"),
  face("Picture Sans", 600, "@fontsource/inter/files/inter-latin-600-normal.woff2"),
  face("Picture Mono", 400, "@fontsource/jetbrains-mono/files/jetbrains-mono-latin-400-normal.woff2"),
  `:root{--font:"Picture Sans" !important;--mono:"Picture Mono" !important}`,
  "*,*::before,*::after{animation:none !important;transition:none !important;caret-color:transparent !important}",
  // What takes most memory is measured now and then: the order of the rows differs.
  ".chart svg,.spark,.tile svg,.level,.qr path,.count-bars svg,[data-live=store-usage]{visibility:hidden !important}",
].join("\n");

// Makes what differs each time the same. Once more changes nothing.
function settle() {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    if (node.parentElement.closest("script, style, .qr")) continue;
    const text = node.nodeValue
      .replace(/\b(just now|\d+ (s|min|h|d) ago|in \d+ (s|min|h|d))\b/g, "a moment ago")
      .replace(/[0-9a-f]{8,}(-[0-9a-f]+)*/g, "0000abcd")
      .replace(/\/tmp\/\S+/g, "/tmp/data")
      .replace(/\d+([,.:]\d+)*( (ms|s|min|[KMG]?B|AM|PM)\b)?/g, "00");
    if (text !== node.nodeValue) node.nodeValue = text;
  }
  for (const field of document.querySelectorAll("input[data-search]")) field.value = field.value.replace(/[0-9a-f]{8,}(-[0-9a-f]+)*/g, "0000abcd");
}

// Compares the page with its stored pictures, in some of light, dark and phone.
export async function picture(tour, page, name, modes = ["light"]) {
  for (const mode of modes) {
    const { viewport, colorScheme } = MODES[mode];
    await page.setViewportSize(viewport);
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    await page.addStyleTag({ content: STYLE });
    await page.evaluate(() => document.fonts.ready.then(() => scrollTo(0, 0)));
    for (const frame of page.frames().slice(1)) await frame.addStyleTag({ content: STYLE }).catch(() => {});
    await page.evaluate(settle);
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    compare(tour, `${name}-${mode}`, await page.screenshot({ animations: "disabled", caret: "hide", scale: "device" }));
    tour.looks += 1;
  }
}

function compare(tour, name, taken) {
  const path = join(kept, `${name}.png`);
  if (process.env.UPDATE_PICTURES) {
    mkdirSync(kept, { recursive: true });
    // Written anew only when it looks different, so that renewing all changes few files.
    if (!existsSync(path) || difference(readFileSync(path), taken).share > TOLERANCE / 4) writeFileSync(path, pack(taken));
    return;
  }
  if (!existsSync(path)) return void tour.problems.push(`${name}: no stored picture; UPDATE_PICTURES=1 makes it`);
  const { share, picture } = difference(readFileSync(path), taken);
  if (share <= TOLERANCE) return;
  writeFileSync(join(tour.shots, `${name}-now.png`), taken);
  if (picture) writeFileSync(join(tour.shots, `${name}-difference.png`), picture);
  tour.problems.push(`${name}: ${(share * 100).toFixed(2)} % of the picture differ from pictures/${name}.png; see ${name}-now.png and ${name}-difference.png among the screenshots, or renew it with UPDATE_PICTURES=1`);
}

// Without an alpha channel, packed as small as PNG allows.
const pack = (taken) => PNG.sync.write(PNG.sync.read(taken), { colorType: 2, deflateLevel: 9, deflateStrategy: 0 });

function difference(before, after) {
  const [a, b] = [PNG.sync.read(before), PNG.sync.read(after)];
  if (a.width !== b.width || a.height !== b.height) return { share: 1 };
  const shown = new PNG({ width: a.width, height: a.height });
  const count = pixelmatch(a.data, b.data, shown.data, a.width, a.height, { threshold: 0.2 });
  return { share: count / (a.width * a.height), picture: PNG.sync.write(shown) };
}
