// Walks through the dashboard with a real browser, as an operator would: sees a failing partition, reads its
// error, fixes the cause, requeues the dead letters, and watches the lag fall. On the way every page is
// checked with axe, in light and dark, and photographed if asked to.
//
// walk.mjs CHROMIUM SHOP [--all] [--pictures FOLDER]
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

// From wherever NODE_PATH says.
const require = createRequire(import.meta.url);
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [chromium, shop, ...options] = process.argv.slice(2);
const all = options.includes("--all");
const pictures = options.includes("--pictures") ? options[options.indexOf("--pictures") + 1] : null;
const PATIENCE = 30_000;
const say = (what) => console.log(what);

// The application, with its trouble.
const application = spawn(shop, { stdio: ["pipe", "pipe", "inherit"] });
const said = {};
for await (const line of createInterface({ input: application.stdout })) {
  const [name, value] = line.split(" ");
  said[name] = value;
  if (said.dashboard) break;
}
const { folder, dashboard } = said;

const browser = await puppeteer.launch({
  executablePath: chromium,
  headless: true,
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"],
});
let failed = null;
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  await page.setViewport({ width: 1280, height: 900 });
  page.on("dialog", (dialog) => dialog.accept());
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(`${error}`));
  page.on("console", (message) => {
    if (["error", "warn"].includes(message.type())) complaints.push(message.text());
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(new URL(dashboard).origin)) complaints.push(`asked for ${request.url()}`);
  });

  const open = (path) => page.goto(dashboard + path, { waitUntil: "domcontentloaded" });
  const text = () => page.evaluate(() => document.querySelector("main").innerText);
  const until = (wanted) =>
    page
      .waitForFunction((wanted) => document.querySelector("main").innerText.includes(wanted), {}, wanted)
      .catch(async () => assert.fail(`${page.url()} never said ${JSON.stringify(wanted)}:\n${await text()}`));
  const gone = (unwanted) =>
    page
      .waitForFunction((unwanted) => !document.querySelector("main").innerText.includes(unwanted), {}, unwanted)
      .catch(async () => assert.fail(`${page.url()} goes on to say ${JSON.stringify(unwanted)}:\n${await text()}`));
  const follow = async (selector) => {
    await Promise.all([page.waitForNavigation({ waitUntil: "domcontentloaded" }), page.click(selector)]);
  };

  // What a page looks like, and whether everybody can use it.
  const inspect = async (name) => {
    if (!all) return;
    for (const scheme of ["light", "dark"]) {
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
      // Not a script of the page, whose policy allows none but its own.
      const violations = await page.evaluate(
        `${axe}; axe.run(document, { resultTypes: ["violations"] }).then((found) => found.violations.map((one) =>
          one.id + ": " + one.help + " at " + one.nodes.map((node) => node.target.join(" ")).join(", ")))`,
      );
      assert.deepEqual(violations, [], `${name} in ${scheme}`);
      if (pictures) await page.screenshot({ path: join(pictures, `${name}-${scheme}.png`) });
    }
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
    await page.setViewport({ width: 390, height: 844, isMobile: true, hasTouch: true });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(wide <= 0, `${name} is ${wide} px wider than a phone`);
    if (pictures && name === "overview") await page.screenshot({ path: join(pictures, `${name}-phone.png`) });
    await page.setViewport({ width: 1280, height: 900 });
  };
  if (pictures) mkdirSync(pictures, { recursive: true });

  say("the overview says what is wrong");
  await open("");
  await until("partition 3 of orders has failed");
  await until("dead letters to decide");
  await page.waitForSelector("#live.on");
  // Long enough for the charts to have something to show.
  await page.waitForFunction(() => document.querySelector(".line-0").getAttribute("points").split(" ").length > 5);
  await inspect("overview");

  say("a failing partition says why");
  await follow("#attention li.problem a");
  assert.match(page.url(), /\/queues\/orders\/3$/);
  await until("connection refused: the carrier does not answer");
  await until("Its first message has failed");
  await inspect("partition");

  say("the queue shows where it is hot");
  await open("/queues/orders");
  await page.waitForSelector(".cell.failing");
  await inspect("queue");

  say("a message shows what is inside, and its trace");
  await open("/messages?queue=orders&partition=3");
  await inspect("messages");
  await follow("tbody a");
  await until("a loom");
  await until("feed");
  await inspect("message");
  await follow(".views a[href='?view=hex']");
  await until("00000000");

  say("workers and health are told");
  await open("/workers");
  await until("first lease");
  await inspect("workers");
  await open("/health");
  await until("failing");
  await inspect("health");

  say("once the carrier is back, the lag falls by itself, before one's eyes");
  await open("/queues/orders/3");
  await until("Its first message has failed");
  rmSync(join(folder, "carrier-is-away"));
  await gone("Its first message has failed");
  await open("");
  await gone("partition 3 of orders has failed");

  say("pausing and resuming works with the keyboard alone");
  await open("/queues/orders/5");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.focus("input[name=reason]");
  await page.keyboard.type("a look at the carrier");
  await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
  await until("Deliveries are paused.");
  await until("Somebody paused it.");
  await page.focus("form[action$='/resume'] button");
  await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
  await until("Deliveries go on.");

  say("dead letters are selected and requeued, with progress");
  await open("/dead-letters");
  await until("no such address");
  await inspect("dead-letters");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  await follow("tbody th a");
  await until("7 Nowhere Lane");
  await inspect("dead-letter");
  rmSync(join(folder, "addresses-are-wrong"));
  await open("/dead-letters");
  await page.click("[data-select-all]");
  const selected = await page.$$eval("input[name=id]:checked", (boxes) => boxes.length);
  assert.ok(selected > 0);
  await page.click("input[name=scope][value=all]");
  await page.type("input[name=reason]", "the addresses were put right");
  await follow("button[value=requeue]");
  await until("done");
  await inspect("job");
  await open("/dead-letters");
  await until("None waits for a decision");

  say("who did what, and why, is in the audit log");
  await open("/audit");
  await until("a look at the carrier");
  await until("the addresses were put right");
  await inspect("audit");

  assert.deepEqual(complaints, [], "the browser complained");
  say("all is well");
} catch (error) {
  failed = error;
} finally {
  await browser.close();
  application.stdin.end();
}
if (failed) {
  console.error(failed);
  process.exitCode = 1;
}
