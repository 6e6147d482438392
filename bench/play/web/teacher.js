/** Runs the lessons: it asks the reader to guess, sends the commands, and reports the answers that the clients got. */

import { duration, icon, sign } from "/drawings/states.js";
import { html, set } from "/drawings/svg.js";
import { badOf } from "./calm.js";
import { starts } from "./faults.js";
import { Observed } from "./observed.js";
import { isWhole } from "./picture.js";
import { DESIGNS, list, troubles } from "./words.js";

/** Time limit for the repair before a lesson, in s: a fixed part, and a part that is divided by the timers' divisor. */
const REPAIR_LIMIT = [60, 120];
/**
 * Time without a fault before a lesson's first command, in ms. The answers in this time show how slow the machine is.
 */
const QUIET_MS = 5000;
const QUIET_LIMIT = [60, 0];

/** Return whether all last answers and readings in a design's state are newer than an instant. */
function isYounger(design, ms) {
  return design.clients.every(({ last }) => last?.done_ms > ms)
    && design.servers.every(({ life, answers, read_ms: read }) => life !== "up" || !answers || read > ms);
}

export class Teacher {
  /**
   * @param {HTMLElement} host
   * @param {object[]} lessons
   * @param {object} parts
   * @param {import("./link.js").Program} parts.program
   * @param {(order: object) => Promise<object | null>} parts.order
   * @param {() => void} parts.back Makes the page show the present instead of the past.
   * @param {(isOpen: boolean) => void} parts.learn Changes the page's layout so that a lesson fits, or changes it back.
   */
  constructor(host, lessons, { program, order, back, learn }) {
    Object.assign(this, { host, lessons, program, order, back, learn, lesson: null, wake: () => {} });
    /** Number of lessons begun so far. An older lesson that still runs sees a higher number, and ends. */
    this.turn = 0;
    this.done = new Set();
    this.desk = html("div", { id: "desk", hidden: true });
    this.choices = html("ol", { class: "lessons" }, ...lessons.map((lesson) => {
      const button = html("button", { type: "button", "data-lesson": lesson.id, title: lesson.title },
        html("span", { class: "name" }, lesson.title));
      button.addEventListener("click", () => this.ask(lesson));
      return html("li", {}, button);
    }));
    host.append(html("h2", { id: "lessons-title" }, "Lessons"), this.choices, this.desk);
  }

  /** Make the waiting step check the new state of all designs, and show this state in the lesson's table. */
  onChange() {
    this.wake();
    if (this.table) this.#showTable();
  }

  /** Show a lesson's story and its question. */
  ask(lesson) {
    this.turn += 1;
    this.wake();
    this.lesson = lesson;
    const go = html("button", { type: "button", class: "main", id: "go", disabled: true }, "Let it happen");
    const pick = html("fieldset", { class: "choices" }, html("legend", {}, lesson.question),
      ...[...lesson.choices, { id: "unsure", text: "I do not know yet." }].map(({ id, text }) =>
        html("label", {}, html("input", { type: "radio", name: "choice", value: id }), html("span", {}, text))));
    pick.addEventListener("change", () => { go.disabled = this.#isOff(); });
    go.addEventListener("click", () => this.#play(lesson, pick.querySelector(":checked").value));
    this.#phase("ask", html("p", {}, lesson.story), pick, html("div", { class: "row" }, go, this.#closer()));
    for (const button of this.choices.querySelectorAll("button")) {
      set(button, { "aria-current": button.dataset.lesson === lesson.id ? "true" : null });
    }
  }

  #isOff() {
    return !this.program.state || this.program.state.replayed;
  }

  #phase(phase, ...parts) {
    const number = this.lessons.indexOf(this.lesson) + 1;
    const title = html("h3", { id: "desk-title", tabindex: -1 }, `Lesson ${number} of ${this.lessons.length}: ${this.lesson.title}`);
    this.table = null;
    this.learn(true);
    set(this.desk, { hidden: false, "data-phase": phase, "data-lesson": this.lesson.id, "data-happened": null, "data-until": null });
    this.desk.replaceChildren(title, ...parts);
    title.focus();
  }

  #closer() {
    const button = html("button", { type: "button" }, "Close the lesson");
    button.addEventListener("click", () => {
      this.turn += 1;
      this.wake();
      this.learn(false);
      set(this.desk, { hidden: true, "data-phase": null });
      const item = this.choices.querySelector("[aria-current]");
      set(item, { "aria-current": null });
      item.focus();
    });
    return button;
  }

  async #play(lesson, choice) {
    this.turn += 1;
    const { turn } = this;
    const isOver = () => turn !== this.turn;
    this.back();
    const steps = [{ tell: "First, everything that is broken is repaired." },
      { tell: "Watch until nothing has been broken for 5 s.", until: ({ name }) => this.#quietMs(name) >= QUIET_MS, limit: QUIET_LIMIT },
      ...lesson.steps];
    const items = steps.map(({ tell }) => html("li", { "data-step": "later" }, tell));
    const table = html("table", { class: "now" });
    this.#phase("watch", html("ol", { class: "steps", "aria-live": "polite" }, ...items), table, html("div", { class: "row" }, this.#closer()));
    this.table = table;
    this.#showTable();
    const acts = new Map();
    let isWithin = true;
    for (const [number, step] of steps.entries()) {
      set(items[number], { "data-step": "now", "aria-current": "step" });
      const result = number === 0 ? await this.#repair(isOver) : await this.#step(step, acts, isOver);
      if (isOver()) return;
      set(items[number], { "data-step": result === "late" ? "late" : "done", "aria-current": null });
      if (result === "late") {
        // Step 1 waits for a time without a fault. On a slow machine there may be none; continue the lesson
        // nevertheless.
        isWithin &&= number === 1;
        items[number].append(" This took longer than the lesson waits.");
      }
      if (result === "failed" || (result === "late" && number === 0)) {
        this.#fail(result === "failed" ? "The playground could not do this step." : "The repair took too long. Start what is down, heal the links, and try again.");
        return;
      }
    }
    this.#tell(lesson, choice, new Observed(this.program.history, this.program.calm, acts, this.#running()), isWithin);
  }

  #running() {
    return this.program.state.designs.filter(({ phase }) => phase === "running").map(({ name }) => name);
  }

  /** Heal all links and start all processes that are down; then wait until `isWhole` is true for every design. */
  async #repair(isOver) {
    const { state } = this.program;
    if (!this.#hold(isWhole)) {
      if (!await this.order({ do: "heal" })) return "failed";
      for (const order of starts(state)) await this.order(order);
    }
    return this.#wait(isWhole, REPAIR_LIMIT, isOver);
  }

  #quietMs(name) {
    return this.program.calm.lasts(name, this.program.state.at_ms);
  }

  async #step({ id, orders, until, again, limit, wait }, acts, isOver) {
    if (again) return this.#repeat(id, orders, (design) => until(design, acts), { again, limit }, acts, isOver);
    if (orders) return this.#give(id, orders, this.#running(), acts, isOver);
    // Accept only states in which every client's last answer and every server's last reading are newer than the last
    // command.
    const since = Math.max(0, ...[...acts.values()].map(({ at_ms: at }) => at));
    if (until) return this.#wait((design) => isYounger(design, since) && until(design, acts), limit, isOver);
    await this.#wait(() => false, wait, isOver);
    return "done";
  }

  /**
   * Send all commands of a step at the same time. Return "done" when the page has the change of the last one, or
   * "failed".
   */
  async #give(id, orders, designs, acts, isOver) {
    const all = await Promise.all(orders.map((wanted) => this.order({ ...wanted, designs })));
    if (all.includes(null)) return "failed";
    const last = all.reduce((one, other) => other.id > one.id ? other : one);
    acts.set(id, last);
    // Wait for the change of the last command, because measures begin with this change.
    return this.#wait(() => this.program.history.last.id >= last.id, [10, 0], isOver);
  }

  /** Send commands again and again, each time only to the designs in which `test` is not true yet. */
  async #repeat(id, orders, test, { again, limit: [fixed, divided] }, acts, isOver) {
    const end = performance.now() + 1000 * (fixed + divided / this.program.state.divisor);
    let result = "late";
    while (!isOver() && result === "late" && performance.now() < end) {
      const designs = this.program.state.designs.filter((design) => design.phase === "running" && !test(design)).map(({ name }) => name);
      if (!designs.length) return "done";
      if (await this.#give(id, orders, designs, acts, isOver) === "failed") return "failed";
      result = await this.#wait(test, [again, 0], isOver);
    }
    return result;
  }

  /** Return whether `test` is true in every running design. */
  #hold(test) {
    const { state } = this.program;
    return this.program.isThere && state.designs.every((design) => design.phase !== "running" || test(design));
  }

  /** Wait until `test` is true in every running design. Return "done", or "late" after the time limit. */
  async #wait(test, [fixed, divided], isOver) {
    const end = performance.now() + 1000 * (fixed + divided / this.program.state.divisor);
    while (!isOver() && performance.now() < end) {
      if (this.#hold(test)) return "done";
      let timer;
      await new Promise((resolve) => {
        this.wake = resolve;
        timer = setTimeout(resolve, Math.max(0, end - performance.now()));
      });
      clearTimeout(timer);
    }
    return "late";
  }

  #fail(text) {
    this.#phase("failed", html("p", {}, text), html("div", { class: "row" }, this.#again("Try again"), this.#closer()));
  }

  #again(text, lesson = this.lesson) {
    const button = html("button", { type: "button" }, text);
    button.addEventListener("click", () => this.ask(lesson));
    return button;
  }

  #tell(lesson, choice, observed, isWithin) {
    const measures = lesson.measure(observed);
    const verdicts = Object.fromEntries(observed.names.map((name) => [name, lesson.verdict(measures, name)]));
    // If a step was late, a measure may be incomplete. Then do not decide which choice came true.
    const happened = isWithin ? lesson.happened(verdicts) : null;
    const textOf = (id) => lesson.choices.find((one) => one.id === id)?.text;
    const expected = choice === "unsure" ? "You made no guess." : choice === happened ? "You expected this." : `You expected: ${textOf(choice)}`;
    const next = this.lessons[this.lessons.indexOf(lesson) + 1];
    this.done.add(lesson.id);
    const item = this.choices.querySelector(`[data-lesson="${lesson.id}"]`);
    set(item, { "data-done": "yes" });
    if (!item.querySelector(".seen")) item.append(html("span", { class: "seen" }, " (seen)"));
    const go = next ? this.#again(`Next: ${next.title}`, next) : null;
    const more = this.#again("Once more");
    const isUnclear = isWithin && !happened && Object.values(verdicts).some(({ is }) => is === "unclear");
    const first = isUnclear ? more : go;
    if (first) first.className = "main";
    this.#phase("seen",
      html("p", { class: "outcome" }, html("strong", {}, happened ? textOf(happened)
        : isUnclear ? "This time it is unclear, as you see below, design by design. Play it once more."
        : isWithin ? "None of the choices says what happened: see below, design by design."
        : "Not everything happened in the time that this lesson waits, so it decides nothing."), ` ${expected}`),
      html("h4", {}, "Seen just now"), html("p", { id: "sentences" }, lesson.seen(measures).join(" ")),
      html("ul", { id: "verdicts" }, ...Object.entries(verdicts).map(([name, { is, text }]) =>
        html("li", { "data-design": name, "data-verdict": is }, html("strong", {}, DESIGNS[name].name), `: ${text}.`))),
      html("p", { id: "quiet" }, quietWords(observed)),
      html("h4", {}, "What the documents say"), html("p", { id: "claim" }, lesson.claim),
      html("p", {}, html("a", { href: lesson.link.href, target: "_blank" }, `${lesson.link.text} (new tab)`)),
      html("div", { class: "row" }, ...(go ? [go] : []), more, this.#closer()));
    // Note the last change that the measures include, because later changes may lead to another result.
    const until = observed.history.last.id;
    set(this.desk, { "data-happened": happened ?? "other", "data-within": isWithin ? "yes" : "no", "data-until": until });
  }

  #showTable() {
    const { state } = this.program;
    const rows = state.designs.map((design) => html("tr", {}, html("th", { scope: "row" }, DESIGNS[design.name].name),
      html("td", {}, ...design.clients.map(({ last }) => {
        const verdict = last?.verdict ?? "unknown";
        const span = html("span", { role: "img", "aria-label": sign("answer", verdict).word }, icon("answer", verdict));
        return span;
      })), html("td", {}, troubles(design.counters))));
    this.table.replaceChildren(html("caption", {}, state.mark ? `Clients now, and their answers since ${duration(state.at_ms - state.mark.at_ms)} ago` : "Clients now"),
      html("tbody", {}, ...rows));
  }
}

/** Return a sentence about the answers in the time without a fault before the lesson's first command. */
function quietWords(observed) {
  const quiet = observed.quiet();
  if (!quiet) return "Something was broken before the lesson began, so nobody knows how this machine answers undisturbed.";
  const slow = Object.entries(quiet.bad).filter(([, counts]) => badOf(counts));
  const time = `In the ${duration(quiet.ms)} before, nothing was broken`;
  if (!slow.length) return `${time}, and every answer was right.`;
  return `${time}, but ${list(slow.map(([name, counts]) => `${DESIGNS[name].name} gave ${troubles(counts)}`))}: `
    + "this machine is slow, and such answers come without any fault.";
}
