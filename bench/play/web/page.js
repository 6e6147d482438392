/** The page: passes the program's messages to the drawings, the timeline, the forms for faults and the lessons. */

import { ANSWERS, duration, legend, sign } from "/drawings/states.js";
import { html, set, svg, write } from "/drawings/svg.js";
import { band } from "/drawings/timeline.js";
import { Faults } from "./faults.js";
import { Program } from "./link.js";
import { LESSONS } from "./lessons.js";
import { Panels } from "./panels.js";
import { Strip } from "./strip.js";
import { Teacher } from "./teacher.js";
import { DESIGNS, counted, failures, named, orderText, troubles } from "./words.js";

const byId = (id) => document.getElementById(id);
const LINES = [
  ["asks", "asks", "It leads from a client to the server that the client asks."],
  ["talks", "talks", "Something passed in the last half second."],
  ["idle", "open", "Nothing passed in the last half second."],
  ["slow", "slow", "Everything arrives later."],
  ["cut", "cut", "Nothing passes. An arrow shows the way that is still open."],
];
/** Shortest time in ms between two texts for screen readers about the answers. */
const SPOKEN_EVERY_MS = 4000;

let past = null;
let spoken = { at: 0, text: "" };
let isDrawn = true;

const program = new Program({
  onBegin: () => {
    strip.begin(program.history, program.calm);
    showTimers();
    showMissing();
    back();
  },
  onChange: (change, before) => {
    strip.add(change, before);
    if (change.divisor) showTimers();
    teacher.onChange();
    if (change.done) say(`${orderText(change.done.order)}. ${failures(change.done)}`);
    draw();
  },
  onTick: () => {
    teacher.onChange();
    draw();
  },
  onLink: () => draw(),
});
const panels = new Panels(byId("designs"), (design, id, element) => faults.open(design, id, element));
const strip = new Strip(byId("time"), (at) => {
  past = at;
  draw();
});
const faults = new Faults({ host: byId("faults"), menu: byId("menu"), order, present: () => program.state });
const teacher = new Teacher(byId("lessons"), LESSONS, { program, order, back, learn });

/** Send a command; if the program refused it or could not execute it, show the reason. */
async function order(wanted) {
  try {
    const done = await program.order(wanted);
    const failed = failures(done);
    notice(failed ? `${orderText(wanted)}: ${failed}` : "");
    return done;
  } catch (error) {
    notice(named(error.message));
    return null;
  }
}

function notice(text, ...more) {
  byId("notice").replaceChildren(text, ...more);
  set(byId("notice"), { hidden: !text });
}

function say(text) {
  write(byId("speaker"), text);
}

/** Change the page's layout so that a lesson fits, or change it back. */
function learn(isOpen) {
  if (isOpen && !document.body.classList.contains("learning")) byId("reading").open = false;
  document.body.classList.toggle("learning", isOpen);
}

function back() {
  past = null;
  strip.seek(null);
  draw();
}

/** Draw at the browser's next frame, once for all changes until then. */
function draw() {
  if (!isDrawn) return;
  isDrawn = false;
  requestAnimationFrame(() => {
    isDrawn = true;
    paint();
  });
}

function paint() {
  const { state, history, traffic } = program;
  showLive(state);
  if (!state) return;
  const isPast = past !== null;
  const shown = isPast ? history.at(past) : state;
  document.body.classList.toggle("past", isPast);
  set(byId("past"), { hidden: !isPast });
  if (isPast) showPast(state);
  panels.show(shown, isPast ? new Map() : traffic, isPast, program.calm, isPast ? `${duration(state.at_ms - past)} ago` : "");
  strip.show(state);
  faults.show(state, isPast);
  speakOf(state);
}

function showLive(state) {
  const text = !program.isThere ? "The playground does not answer. This page shows the last picture and tries again."
    : !state ? "connecting" : state.replayed ? "A saved session, played again"
    : state.designs.some(({ phase }) => phase === "starting") ? "starting" : slowness(program.calm.noise(state.at_ms));
  write(byId("live"), text);
  set(byId("live"), { "data-live": program.isThere ? "yes" : "no" });
}

/** Return the word "live", with a warning if answers were not right although nothing was broken. */
function slowness(failed) {
  return failed ? `live, on a slow machine: ${counted(failed, "answer")} failed in a minute in which nothing was broken` : "live";
}

function showPast(state) {
  if (!byId("past").childElementCount) {
    const button = html("button", { type: "button" }, "Back to now");
    button.addEventListener("click", back);
    byId("past").append(html("strong"), button);
  }
  write(byId("past").firstChild, `You see the past: ${duration(state.at_ms - past)} ago.`);
}

function speakOf(state) {
  const now = performance.now();
  if (!state.mark || now - spoken.at < SPOKEN_EVERY_MS) return;
  const parts = state.designs.map(({ name, counters }) => `${DESIGNS[name].name}: ${troubles(counters)}`);
  const text = `Since the fault. ${parts.join(". ")}.`;
  if (text === spoken.text) return;
  spoken = { at: now, text };
  say(text);
}

function showTimers() {
  const { divisors, divisor, replayed } = program.state;
  const options = divisors.map((by) => html("option", { value: by, selected: by === divisor },
    by === 1 ? "RocketMQ's own" : `${by} times faster`));
  byId("timers").replaceChildren(...options);
  byId("timers").disabled = replayed;
  byId("save").disabled = replayed;
}

function showMissing() {
  if (program.state.missing.length) notice(named(program.state.missing.join(". ")));
}

byId("timers").addEventListener("change", () => {
  const divisor = Number(byId("timers").value);
  order({ do: "timers", divisor }).then((done) => { if (!done) showTimers(); });
});

byId("save").addEventListener("click", async () => {
  try {
    const { folder, report, replay } = await program.save();
    notice("The session is saved in ", html("code", {}, folder), ". Play it again: ", html("code", {}, replay),
      ". Make a page of it: ", html("code", {}, report), ".");
  } catch (error) {
    notice(error.message);
  }
});

function wire(css) {
  return svg("svg", { class: `band cl-link cl-${css}`, width: 20, height: 13, "aria-hidden": "true", focusable: "false" },
    svg("path", { class: "cl-wire", pathLength: 100, d: "M1 6.5H19", "stroke-dasharray": css === "cut" ? "35 30 35" : null }));
}

byId("signs").addEventListener("click", () => {
  const close = html("button", { type: "button", autofocus: true }, "Close");
  close.addEventListener("click", () => byId("legend").close());
  const chip = (css, text, word, meaning) => html("li", {}, html("span", { class: `chip ${css}`, "aria-hidden": "true" }, text),
    html("strong", {}, word), html("span", {}, meaning));
  byId("legend").replaceChildren(
    html("div", { class: "title" }, html("h2", { id: "legend-title" }, "Signs and colours"), close),
    html("h3", {}, "Answers that a client gets"), legend("answer"),
    html("h3", {}, "The same answers as bands of the strip of time"),
    html("ul", { class: "bands" }, ...Object.keys(ANSWERS).map((name) => html("li", {}, band("answer", name), sign("answer", name).word))),
    html("h3", {}, "Lines"),
    html("ul", { class: "legend" }, ...LINES.map(([css, word, meaning]) => html("li", {}, wire(css), html("strong", {}, word), html("span", {}, meaning)))),
    html("h3", {}, "Servers and brokers"), legend("server"),
    html("h3", {}, "Squares in a server or a client: one for each broker"),
    html("ul", { class: "legend" },
      chip("listed", "1", "listed", "The table lists broker 1."),
      chip("ghost", "1", "wrongly listed", "The table lists broker 1, which is down or paused."),
      chip("missing", "1", "left out", "The table leaves broker 1 out, although it runs. Perhaps a fault cuts it off from there."),
      chip("absent", "1", "not listed", "The table leaves broker 1 out, and it does not run."),
      chip("absent", "1", "not known", "The process shows no table. In a server the square looks as one that is not listed."),
      chip("old", "1", "as it was", "The server does not answer now. This is what it listed when it answered last.")),
    html("h3", {}, "Events"), legend("event"));
  byId("legend").showModal();
});

program.open();
byId("unloaded").remove();
