/**
 * States and their signs: each state has a word, a shape and a CSS class.
 *
 * A user need not distinguish colours: within a family of states, the mark of each state has its own shape,
 * and the state's band in a timeline has its own pattern. drawings.css gives each class its colours for light
 * and dark screens.
 *
 * A shape is an SVG path in the square from -8 to 8. `inner` is a second path, drawn on the shape in the colour of the
 * background.
 */

import { html, set, svg } from "./svg.js";

/** Results of a client's request. */
export const ANSWERS = {
  right: {
    word: "right",
    meaning: "The answer lists exactly the brokers that have the topic and can be reached.",
    shape: "M0-7.2A7.2 7.2 0 1 1 0 7.2 7.2 7.2 0 1 1 0-7.2Z",
    inner: "M-3.4.2-1 2.7 3.6-2.5",
    band: "line",
  },
  stale: {
    word: "stale",
    meaning: "Something is new, such as a broker that came back, and the answer does not show it yet.",
    shape: "M0-7.8 8 6.6H-8Z",
    inner: "M0-2.6V2.4L2.6 4",
    band: "teeth",
  },
  wrong: {
    word: "wrong",
    meaning: "The answer lists a broker that is gone, or leaves out one that is there.",
    shape: "M-7.4-4.2-4.2-7.4 0-3.2 4.2-7.4 7.4-4.2 3.2 0 7.4 4.2 4.2 7.4 0 3.2-4.2 7.4-7.4 4.2-3.2 0Z",
    band: "block",
  },
  refused: {
    word: "refused",
    meaning: "The server said that it cannot answer, so the client knows that it knows nothing.",
    shape: "M-6.8-6.8H6.8V6.8H-6.8Z",
    inner: "M-3.8 0H3.8",
    band: "rails",
  },
  none: {
    word: "no answer",
    meaning: "The client asked, and nothing came back before its time limit.",
    shape: "M0-7.4A7.4 7.4 0 1 1 0 7.4 7.4 7.4 0 1 1 0-7.4ZM0-4.4A4.4 4.4 0 1 0 0 4.4 4.4 4.4 0 1 0 0-4.4Z",
    band: "dots",
  },
  uncounted: {
    word: "unclear",
    meaning: "Something changed while the client waited, so the answer is neither right nor wrong.",
    shape: "M0-7.2A7.2 7.2 0 1 1 0 7.2 7.2 7.2 0 1 1 0-7.2ZM0-4.8V4.8A4.8 4.8 0 0 1 0-4.8Z",
    band: "half",
  },
};

/** States of a server or a broker. */
export const SERVERS = {
  up: {
    word: "up",
    meaning: "The process runs. No server leads the others in this design.",
    shape: "M-7.6 0-3.8-6.6H3.8L7.6 0 3.8 6.6H-3.8Z",
    band: "half",
  },
  leader: {
    word: "leader",
    meaning: "The process runs, and the others let it put all changes in order.",
    shape: "M0-8 2.3-2.9 7.8-2.4 3.7 1.3 4.9 6.8 0 3.9-4.9 6.8-3.7 1.3-7.8-2.4-2.3-2.9Z",
    band: "block",
  },
  follower: {
    word: "follower",
    meaning: "The process runs and copies each change from the leader.",
    shape: "M0-7.6 7.6 0 0 7.6-7.6 0Z",
    band: "line",
  },
  leaderless: {
    word: "no leader",
    meaning: "The process runs, but it reaches no leader, so it cannot take part in changes.",
    shape: "M0-7.8 7.8 0 0 7.8-7.8 0ZM0-4 -4 0 0 4 4 0Z",
    band: "rails",
  },
  silent: {
    word: "no answer",
    meaning: "The process runs, but it did not answer when it was asked for its table.",
    shape: "M-7.6 0-3.8-6.6H3.8L7.6 0 3.8 6.6H-3.8ZM-4.2 0-2.1 3.6H2.1L4.2 0 2.1-3.6H-2.1Z",
    band: "dashes",
  },
  starting: {
    word: "starting",
    meaning: "The process has been started and does not serve yet.",
    shape: "M0-7.4 6.6-.8H2.4V7.4H-2.4V-.8H-6.6Z",
    band: "teeth",
  },
  paused: {
    word: "paused",
    meaning: "The process is stopped. Its connections stay open, and nothing answers.",
    shape: "M-6.2-6.8H-1.8V6.8H-6.2ZM1.8-6.8H6.2V6.8H1.8Z",
    band: "bars",
  },
  down: {
    word: "down",
    meaning: "The process does not run.",
    shape: "M-7.6-2.2H7.6V2.2H-7.6Z",
    band: "dots",
  },
};

/** Kinds of events on a timeline. */
export const EVENTS = {
  fault: { word: "fault", meaning: "Somebody broke something.", shape: "M2.4-8-5.6 1.4H-.6L-2.4 8 5.6-1.8H.6Z" },
  heal: {
    word: "healed",
    meaning: "A fault was taken back.",
    shape: "M-2.2-7.2H2.2V-2.2H7.2V2.2H2.2V7.2H-2.2V2.2H-7.2V-2.2H-2.2Z",
  },
  leader: { word: "leader", meaning: "The leader changed.", shape: SERVERS.leader.shape },
  dropped: { word: "dropped", meaning: "A server dropped a broker from its table.", shape: "M-7-5.4H7L0 7.2Z" },
  listed: { word: "listed", meaning: "A server listed a broker in its table.", shape: "M-7 5.4H7L0-7.2Z" },
  change: { word: "change", meaning: "A process changed its state.", shape: "M0-5.2 5.2 0 0 5.2-5.2 0Z" },
};

/** The sign for a missing state, and for a state that this page does not know. */
const UNKNOWN = {
  word: "nothing yet",
  meaning: "Nothing is known yet.",
  shape: "M0-3A3 3 0 1 1 0 3 3 3 0 1 1 0-3Z",
  band: "none",
};

const FAMILIES = { answer: ANSWERS, server: SERVERS, event: EVENTS };

/** Return word, meaning, shape, band and class of a state; `family` is "answer", "server" or "event". */
export function sign(family, name) {
  const known = Object.hasOwn(FAMILIES[family], name);
  return {
    inner: null,
    band: "none",
    ...(known ? FAMILIES[family][name] : UNKNOWN),
    css: `s-${family}-${known ? name : "unknown"}`,
  };
}

/** Return a mark that `showMark` can change later. The caller must also show the state's word, or put it in a label. */
export function mark(family, name) {
  const group = svg("g", { class: "mark" }, svg("path", { "fill-rule": "evenodd" }), svg("path", { class: "inner" }));
  showMark(group, family, name);
  return group;
}

/** Change a mark to another state. */
export function showMark(group, family, name) {
  const found = sign(family, name);
  set(group, { class: `mark ${found.css}`, "data-state": name });
  set(group.firstChild, { d: found.shape });
  set(group.lastChild, { d: found.inner ?? "M0 0" });
}

/** Return a mark as a separate SVG image, for use in a line of text. */
export function icon(family, name) {
  return svg("svg", { class: "icon", viewBox: "-9 -9 18 18", "aria-hidden": "true", focusable: "false" },
    mark(family, name));
}

/** Return a list that shows the mark, the word and the meaning of each of these states. */
export function legend(family, names = Object.keys(FAMILIES[family])) {
  return html("ul", { class: "legend" }, ...names.map((name) => {
    const { word, meaning } = sign(family, name);
    return html("li", {}, icon(family, name), html("strong", {}, word), html("span", {}, meaning));
  }));
}

/** Return a length of time for people: "0.4 s", "12 s", "3 min", "2 h". */
export function duration(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 99.5) return `${Math.round(s)} s`;
  if (s < 5970) return `${Math.round(s / 60)} min`;
  return `${Math.round(s / 3600)} h`;
}
