/** The timeline below the drawings, the list of events, and a sentence on the answers since the last fault. */

import { ANSWERS, duration, icon, sign } from "/drawings/states.js";
import { html, set, write } from "/drawings/svg.js";
import { Timeline, band } from "/drawings/timeline.js";
import { apply } from "./picture.js";
import { Lanes, eventsOf } from "./story.js";
import { DESIGNS, before, counted, isTroubled, troubles } from "./words.js";

const WINDOWS = [[60, "1 minute"], [180, "3 minutes"], [600, "10 minutes"], [Infinity, "everything"]];
/** Highest number of events in the list, which shows the latest ones. */
const LISTED_MAX = 60;
const DRAWN_EVERY_MS = 250;

export class Strip {
  /**
   * @param {HTMLElement} host
   * @param {(at: number | null) => void} onSeek Called when the user chooses an instant; null for now.
   */
  constructor(host, onSeek) {
    Object.assign(this, { onSeek, lanes: null, events: [], count: 0, window: 60, at: null, chosen: [], drawnAt: -Infinity, listed: null });
    this.since = html("p", { id: "difference" });
    const choice = html("select", { id: "window" }, ...WINDOWS.map(([s, name]) => html("option", { value: s, selected: s === 60 }, name)));
    choice.addEventListener("change", () => {
      this.window = Number(choice.value);
      this.#draw();
    });
    const button = (id, text, act) => {
      const made = html("button", { type: "button", id }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.now = button("now", "Now", () => this.#choose(null));
    this.strip = html("div", { class: "strip" });
    this.list = html("ol", { class: "events", reversed: true });
    this.fold = html("details", { id: "events" }, html("summary", {}, "Events in words"), this.list);
    this.fold.addEventListener("toggle", () => this.#drawList());
    host.append(
      html("div", { class: "title" }, html("h2", { id: "time-title" }, "Time"),
        html("div", { class: "tools" }, button("earlier", "Event before", () => this.#step(-1)),
          button("later", "Event after", () => this.#step(1)), this.now, html("label", {}, "Show ", choice))),
      this.since, this.strip, bands(), this.fold);
    this.timeline = new Timeline(this.strip, {
      label: "Instant that the drawings show. Left and right move by a second, Home to the start, End to now.",
      lane: 13, heading: 15, onSeek: (at, events) => this.#choose(at, events),
    });
  }

  /** Begin to show a session: add all its changes until now. */
  begin(history, calm) {
    Object.assign(this, { history, calm, lanes: new Lanes(history.base), events: [], count: 0, listed: null });
    let before = history.base;
    for (const change of history.changes) {
      this.add(change, before);
      before = apply(before, change);
    }
    this.from = history.base.at_ms;
    this.drawnAt = -Infinity;
  }

  /** Add a change. */
  add(change, before) {
    this.lanes.add(change);
    const events = eventsOf(before, change);
    this.events.push(...events);
    this.count += events.length;
  }

  /** Show all changes until now; `state` is the present state of all designs. */
  show(state) {
    this.state = state;
    this.#forget();
    if (this.at === null) this.#showDifference();
    else this.#showPast();
    const now = performance.now();
    if (now - this.drawnAt < DRAWN_EVERY_MS) return;
    this.drawnAt = now;
    this.#draw();
  }

  /** Mark an instant on the timeline as the shown one; null for the present. */
  seek(at) {
    this.at = at;
    this.timeline.seek(at);
  }

  /** Drop events and bands from before the oldest state of the history, because the page cannot draw older states. */
  #forget() {
    const { at_ms: oldest } = this.history.base;
    if (oldest === this.from) return;
    this.from = oldest;
    this.events = this.events.filter(({ at }) => at >= oldest);
    this.lanes.drop(oldest);
    if (this.at !== null && this.at < oldest) this.#choose(null);
  }

  #choose(at, events = []) {
    this.seek(at);
    this.chosen = events;
    this.onSeek(at);
  }

  #step(direction) {
    const found = this.timeline.neighbour(direction);
    if (found) this.#choose(found[0].at, found);
    else if (direction > 0) this.#choose(null);
  }

  #draw() {
    if (!this.state) return;
    const to = Math.max(this.state.at_ms, this.from + 1);
    const width = this.window * 1000;
    // Do not move the timeline while the user looks at the past: a moving timeline is hard to click.
    const end = this.at === null ? to : Math.max(this.end ?? to, this.at);
    this.end = end;
    const from = Math.max(this.from, Number.isFinite(width) ? end - width : this.from);
    this.timeline.show({
      from: Math.min(from, to - 10000), to: end, now: to, groups: this.lanes.groups(), events: this.events.filter(({ isMinor }) => !isMinor),
    });
    this.#drawList();
  }

  #drawList() {
    if (!this.fold.open) return;
    const shown = this.events.slice(-LISTED_MAX);
    const key = `${this.count} from ${this.from}`;
    if (this.listed === key) return;
    this.listed = key;
    this.list.replaceChildren(...shown.reverse().map((event) => {
      const look = html("button", { type: "button" }, html("time", {}, instant(event.at)), icon("event", event.kind), event.text);
      look.addEventListener("click", () => this.#choose(event.at, [event]));
      return html("li", { "data-kind": event.kind }, look);
    }));
    set(this.list, { start: this.count });
  }

  /** Show in words how long ago the chosen instant was, and which events happened then. */
  #showPast() {
    const [first, ...others] = [...this.chosen].sort((one, other) => (other.kind === "fault") - (one.kind === "fault"));
    const event = first ? `: ${first.text}${others.length ? `; and ${counted(others.length, "event")} close to it` : ""}` : "";
    write(this.since, `${duration(this.state.at_ms - this.at)} ago${event}.`);
  }

  /**
   * Return words for the answers since the fault that were not right while nothing was broken; empty if there are none.
   */
  #afterwards(name, fault) {
    const later = this.calm.later(name, fault, this.state.at_ms);
    return later ? ` (${later} of them while nothing was broken in it)` : "";
  }

  #showDifference() {
    const { mark, designs, at_ms: now } = this.state;
    const running = designs.filter(({ phase }) => phase === "running");
    const parts = running.map(({ name, counters }) => `${DESIGNS[name].name} ${troubles(counters)}${mark ? this.#afterwards(name, mark.at_ms) : ""}`);
    const text = running.some(({ counters }) => isTroubled(counters)) ? parts.join("; ") : "only right answers in every design";
    const since = mark ? `Since the fault ${duration(now - mark.at_ms)} ago` : "Since the start";
    const earlier = mark ? running.map(({ name }) => [name, before(this.calm.compare(name, mark.at_ms, now), now - mark.at_ms)])
      .filter(([, words]) => words).map(([name, words]) => `${DESIGNS[name].name} ${words}`) : [];
    const also = earlier.length ? ` Before it, although nothing was broken: ${earlier.join("; ")}.` : "";
    write(this.since, running.length ? `${since}: ${text}.${also}` : "");
  }
}

/** Return a list that explains the colours of the timeline's bands. */
function bands() {
  return html("ul", { class: "bands" }, html("li", {}, "A row is a client. Its answers:"),
    ...Object.keys(ANSWERS).map((name) => html("li", {}, band("answer", name), sign("answer", name).word)),
    html("li", {}, "A number counts events close together."));
}

function instant(ms) {
  const tenths = Math.floor(ms / 100);
  const s = `${(tenths % 600 / 10).toFixed(1)} s`;
  return tenths < 600 ? s : `${Math.floor(tenths / 600)} min ${s}`;
}
