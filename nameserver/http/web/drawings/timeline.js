/**
 * A timeline: events at the top, and below them one lane for each process. A lane shows the states of its process.
 *
 * The user selects an instant of the past by pointer or keyboard, and a line (the head) marks it. `onSeek` gets the
 * instant in ms, or null for "now". The timeline is one slider: arrow keys move the head by a step, Page Up and Page
 * Down by ten steps, Home to the beginning, and End to now.
 *
 * One path draws all spans of one state in one lane, so that an hour of changes needs only some dozens of elements.
 */

import { duration, mark, sign } from "./states.js";
import { html, set, svg, write } from "./svg.js";

const EVENTS = 26;
const AXIS = 20;
const RIGHT = 10;
/** Smallest width of a span in pixels: a single wrong answer among a thousand answers must be visible. */
const WIDTH_MIN = 2;
/** Events closer together than this many pixels share one mark, which shows their number. */
const CROWDED = 13;
/** Width in pixels of one digit of a mark's number. The number is not drawn if the next mark is too close. */
const DIGIT = 7;
/** Smallest distance in pixels between the head and the next mark that `neighbour` finds. */
const STEP_MIN = 6;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600].map((s) => s * 1000);

/** The patterns of bands. Each function returns the path of a piece from x to x + w; y is the middle of the lane. */
const BANDS = {
  none: () => "",
  line: (x, y, w) => box(x, y - 1.5, w, 3),
  half: (x, y, w) => box(x, y - 3, w, 6),
  block: (x, y, w) => box(x, y - 6, w, 12),
  rails: (x, y, w) => box(x, y - 6, w, 12) + hole(x + 1.5, y - 3.5, w - 3, 7),
  dots: (x, y, w) => repeat(x, w, 6, (at, wide) => box(at, y - 1.5, Math.min(3, wide), 3)),
  dashes: (x, y, w) => repeat(x, w, 10, (at, wide) => box(at, y - 2, Math.min(7, wide), 4)),
  bars: (x, y, w) => repeat(x, w, 5, (at, wide) => box(at, y - 5, Math.min(2, wide), 10)),
  teeth: (x, y, w) => repeat(x, w, 8, (at, wide) => `M${r(at)} ${r(y + 5)}h${r(wide)}L${r(at + wide / 2)} ${r(y - 5)}Z`),
};

const r = (value) => Math.round(value * 10) / 10;
const box = (x, y, w, h) => `M${r(x)} ${r(y)}h${r(w)}v${h}h${r(-w)}Z`;
const hole = (x, y, w, h) => w > 1 ? `M${r(x)} ${r(y)}v${h}h${r(w)}v${-h}Z` : "";

function repeat(x, w, every, piece) {
  let path = "";
  for (let at = 0; at < w; at += every) path += piece(x + at, Math.min(every, w - at));
  return path;
}

/** Return the event that gives a shared mark its shape and its text. */
function chief(events) {
  return events.find(({ kind }) => kind === "fault") ?? events.find(({ kind }) => kind === "heal") ?? events[0];
}

/** Return a piece of a state's band as an SVG image, for use in a line of text. */
export function band(family, name) {
  const { band: form, css } = sign(family, name);
  return svg("svg", { class: "band", width: 26, height: 13, "aria-hidden": "true", focusable: "false" },
    svg("path", { class: `tl-band ${css}`, "fill-rule": "evenodd", d: BANDS[form](1, 6.5, 24) }));
}

export class Timeline {
  /**
   * Build an empty timeline inside `host`; `show` fills it.
   *
   * @param {HTMLElement} host
   * @param {object} choices
   * @param {string} choices.label Name of the slider, for screen readers.
   * @param {(at: number | null, events: object[]) => void} [choices.onSeek] Called when the user has selected an
   *   instant. `events` are the events of the mark that the user selected, if any.
   * @param {number} [choices.step] Time in ms by which an arrow key moves the head.
   * @param {number} [choices.lane] Height of a lane in pixels, at least 13.
   * @param {number} [choices.heading] Height in pixels of the name above a group of lanes.
   * @param {(at: number, now: number) => string} [choices.instant] Returns the text of an instant; by default its age.
   */
  constructor(host, { label, onSeek = () => {}, step = 1000, lane = 15, heading = 19, instant = (at, now) => `${duration(now - at)} ago` }) {
    Object.assign(this, { onSeek, step, lane, heading, instant, at: null, width: 0 });
    this.data = { from: 0, to: 1, groups: [], events: [] };
    this.lanes = new Map();
    this.grid = svg("g", { class: "tl-grid" });
    this.bands = svg("g");
    this.marks = svg("g");
    this.veil = svg("rect", { class: "tl-veil", y: 0 });
    this.head = svg("path", { class: "tl-head" });
    this.flag = svg("text", { class: "tl-flag" });
    this.svg = svg("svg", { class: "tl-svg", "aria-hidden": "true", focusable: "false" },
      this.grid, this.bands, this.marks, this.veil, this.head, this.flag);
    this.slider = html("div", {
      class: "tl-slider", role: "slider", tabindex: 0, "aria-label": label, "aria-orientation": "horizontal",
    });
    this.frame = html("div", { class: "tl" }, this.svg, this.slider);
    host.append(this.frame);
    this.slider.addEventListener("keydown", (event) => this.#key(event));
    this.slider.addEventListener("pointerdown", (event) => this.#down(event));
    this.slider.addEventListener("pointermove", (event) => this.#move(event));
    this.slider.addEventListener("pointerleave", () => this.slider.removeAttribute("title"));
    new ResizeObserver(() => this.#draw()).observe(this.frame);
  }

  /**
   * Show this data. All instants are in ms of one clock; the timeline ends at `to`.
   *
   * @param {object} data
   * @param {number} data.from
   * @param {number} data.to
   * @param {number} [data.now] The present, if it is later than `to`, because the user looks at the past.
   * @param {{name: string, lanes: {id: string, name: string, family: string,
   *   spans: {from: number, to: number | null, state: string}[]}[]}[]} data.groups
   *   Spans in order of time; `to` is null for a state that still lasts. A lane's id is unique in the timeline.
   * @param {{at: number, kind: string, text: string}[]} data.events In order of time.
   */
  show(data) {
    this.data = data;
    this.#draw();
  }

  /** Move the head to an instant, or to now for null, without a call of `onSeek`. */
  seek(at) {
    this.at = at;
    this.#drawHead();
  }

  /**
   * Return the events of the next mark before (-1) or after (1) the head, or null if there is no such mark.
   *
   * Skip marks closer than STEP_MIN pixels to the head, unless the head is at now. A mark stands at its first event.
   */
  neighbour(direction) {
    const marks = this.#crowds();
    if (this.at === null) return direction < 0 ? marks.at(-1)?.events ?? null : null;
    const here = this.#x(this.at);
    const found = direction < 0 ? marks.findLast(({ x }) => x <= here - STEP_MIN) : marks.find(({ x }) => x >= here + STEP_MIN);
    return found?.events ?? null;
  }

  #choose(at, events = []) {
    const { from, to } = this.data;
    this.at = at === null || at >= to ? null : Math.max(from, at);
    this.#drawHead();
    this.onSeek(this.at, this.at === null ? [] : events);
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const here = this.at ?? this.data.to;
    const far = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: here - this.step * far, ArrowDown: here - this.step * far,
      ArrowRight: here + this.step * far, ArrowUp: here + this.step * far,
      PageDown: here - 10 * this.step, PageUp: here + 10 * this.step,
      Home: this.data.from, End: null,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.#choose(moves[event.key]);
  }

  #down(event) {
    if (event.button !== 0) return;
    this.slider.setPointerCapture(event.pointerId);
    this.#chooseAt(event);
  }

  #move(event) {
    if (this.slider.hasPointerCapture(event.pointerId)) this.#chooseAt(event);
    else set(this.slider, { title: this.#titleAt(event) });
  }

  /** Select the mark under the pointer; if there is none, select the instant under the pointer. */
  #chooseAt(event) {
    const events = this.#near(event);
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    if (events.length) this.#choose(chief(events).at, events);
    else this.#choose(x >= this.width - RIGHT ? null : this.data.from + (x - this.left) / this.scale);
  }

  /** Return the events of the mark under the pointer; an empty list if there is none. */
  #near(event) {
    const place = this.svg.getBoundingClientRect();
    if (event.clientY - place.top > EVENTS) return [];
    const x = event.clientX - place.left;
    return this.#crowds().filter((one) => Math.abs(one.x - x) < 8).at(-1)?.events ?? [];
  }

  #titleAt(event) {
    const near = this.#near(event);
    if (!near.length) return null;
    const { at, text } = chief(near);
    return `${this.instant(at, this.data.now ?? this.data.to)}: ${text}`;
  }

  #x(at) {
    return this.left + (Math.min(Math.max(at, this.data.from), this.data.to) - this.data.from) * this.scale;
  }

  #draw() {
    this.width = this.frame.clientWidth;
    if (!this.width) return;
    const { from, to, groups } = this.data;
    this.left = this.width < 560 ? 70 : 112;
    this.scale = (this.width - this.left - RIGHT) / Math.max(1, to - from);
    this.bottom = EVENTS + groups.reduce((sum, group) => sum + this.heading + group.lanes.length * this.lane, 0);
    set(this.svg, { width: this.width, height: this.bottom + AXIS });
    this.#drawGrid();
    this.#drawLanes();
    this.#drawEvents();
    this.#drawHead();
  }

  #drawGrid() {
    const { from, to, now = to } = this.data;
    const every = STEPS.find((step) => step * this.scale >= 58) ?? STEPS.at(-1);
    const parts = [];
    for (let back = 0; to - back >= from; back += every) {
      const x = r(this.#x(to - back));
      parts.push(svg("path", { d: `M${x} ${EVENTS}V${this.bottom}` }),
        svg("text", { x, y: this.bottom + 14, "text-anchor": back ? "middle" : "end" },
          now - to + back < 500 ? "now" : `-${duration(now - to + back).replace(".0", "")}`));
    }
    this.grid.replaceChildren(...parts);
  }

  #drawLanes() {
    const used = new Set();
    let y = EVENTS;
    for (const [number, group] of this.data.groups.entries()) {
      y = this.#drawHeading(`group ${number}`, group.name, y, used);
      for (const lane of group.lanes) {
        this.#drawLane(lane, y + this.lane / 2, used);
        y += this.lane;
      }
    }
    for (const [key, element] of this.lanes) {
      if (used.has(key)) continue;
      element.remove();
      this.lanes.delete(key);
    }
  }

  #element(key, used, make) {
    used.add(key);
    if (!this.lanes.has(key)) {
      this.lanes.set(key, make());
      this.bands.append(this.lanes.get(key));
    }
    return this.lanes.get(key);
  }

  #drawHeading(key, name, y, used) {
    const text = this.#element(key, used, () => svg("text", { class: "tl-group" }));
    set(text, { x: 0, y: y + this.heading - 4 });
    write(text, name);
    return y + this.heading;
  }

  #drawLane(lane, y, used) {
    const label = this.#element(`label ${lane.id}`, used, () => svg("text", { class: "tl-label" }));
    set(label, { x: 0, y: y + 4 });
    write(label, lane.name);
    const paths = {};
    for (const span of lane.spans) {
      if ((span.to ?? this.data.to) < this.data.from) continue;
      const x = this.#x(span.from);
      const w = Math.max(WIDTH_MIN, this.#x(span.to ?? this.data.to) - x);
      paths[span.state] = (paths[span.state] ?? "") + BANDS[sign(lane.family, span.state).band](x, y, w);
    }
    for (const [state, d] of Object.entries(paths)) {
      const css = `tl-band ${sign(lane.family, state).css}`;
      const made = () => svg("path", { "fill-rule": "evenodd", "data-lane": lane.id, "data-state": state });
      set(this.#element(`${lane.id} ${state}`, used, made), { class: css, d });
    }
  }

  /** Return the marks of all events in view, each with its place and its events. */
  #crowds() {
    const crowds = [];
    for (const event of this.data.events) {
      if (event.at < this.data.from) continue;
      const x = this.#x(event.at);
      const last = crowds.at(-1);
      if (last && x - last.x < CROWDED) {
        last.events.push(event);
        continue;
      }
      crowds.push({ x, events: [event] });
    }
    return crowds;
  }

  #drawEvents() {
    this.marks.replaceChildren(...this.#crowds().map(({ x, events }, place, all) => {
      const first = chief(events);
      const drawn = svg("g", { class: "tl-event", transform: `translate(${r(x)} 13)` }, mark("event", first.kind));
      const line = svg("path", { class: `tl-drop s-event-${first.kind}`, d: `M0 9V${this.bottom - 13}` });
      if (first.kind === "fault" || first.kind === "heal") drawn.prepend(line);
      const count = String(events.length);
      const isLast = x > this.width - RIGHT - 16; // then write the number on the left, or the edge cuts it off
      if (events.length > 1 && (all[place + 1]?.x ?? Infinity) - x >= CROWDED + DIGIT * (count.length - 1)) {
        drawn.append(svg("text", { x: isLast ? -6 : 5, y: -4, "text-anchor": isLast ? "end" : null }, count));
      }
      return drawn;
    }));
  }

  #drawHead() {
    if (!this.width) return;
    const { from, to, now = to } = this.data;
    const here = this.at === null ? to : Math.min(Math.max(this.at, from), to);
    const x = r(this.#x(here));
    set(this.head, {
      class: this.at === null ? "tl-head" : "tl-head past",
      d: `M${x - 5} 0h10l-4.5 7V${this.bottom}h-1V7Z`,
    });
    const side = x < this.left + 40 ? "start" : x > this.width - 50 ? "end" : "middle";
    set(write(this.flag, this.at === null ? "" : this.instant(here, now)), { x, y: this.bottom + 14, "text-anchor": side });
    set(this.veil, { x, width: Math.max(0, r(this.#x(to) - x)), height: this.bottom });
    set(this.slider, {
      "aria-valuemin": Math.round(from / 1000), "aria-valuemax": Math.round(to / 1000),
      "aria-valuenow": Math.round(here / 1000),
      "aria-valuetext": this.at === null ? "now, live" : this.instant(here, now),
    });
  }
}
