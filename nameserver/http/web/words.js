// Words and signs for the states of brokers and nameservers; texts for times and counts.

import { icon } from "/drawings/states.js";

// Signs, each as [family, name] of a state in /drawings/states.js. Each sign has its own shape and colour.
const SIGNS = {
  good: ["answer", "right"],
  late: ["server", "paused"],
  differs: ["event", "change"],
  older: ["answer", "stale"],
  bad: ["answer", "wrong"],
  unknown: ["answer", "uncounted"],
  leader: ["server", "leader"],
  follower: ["server", "follower"],
  learner: ["server", "starting"],
  independent: ["server", "up"],
  silent: ["answer", "none"],
  leaderless: ["server", "leaderless"],
  refused: ["answer", "refused"],
  came: ["event", "listed"],
  went: ["event", "dropped"],
  lost: ["event", "fault"],
};

export const CELLS = {
  listed: { words: "listed", sign: "good" },
  late: { words: "listed, but silent", sign: "late" },
  differs: { words: "differs", sign: "differs" },
  older: { words: "older copy", sign: "older" },
  missing: { words: "not listed", sign: "bad" },
  unknown: { words: "not known", sign: "unknown" },
};

const NAMESERVERS = {
  this: "this nameserver",
  answered: "answers",
  asking: "being asked",
  silent: "no answer",
  refused: "gives no answer",
  unknown: "not asked",
};

export const stateWords = (nameserver) => NAMESERVERS[nameserver.state];

// Return the name of a nameserver's sign: its role if it answers and is ready, otherwise its state.
export function nameserverSign(nameserver) {
  if (nameserver.state === "silent") return "silent";
  if (nameserver.state === "refused") return "refused";
  if (nameserver.state === "asking" || nameserver.state === "unknown") return "unknown";
  if (nameserver.ready === false) return "leaderless";
  return nameserver.role in SIGNS ? nameserver.role : "independent";
}

const marks = new Map(); // one original of each sign, by name; mark() copies it, because a table has hundreds of signs

export function mark(name) {
  if (!marks.has(name)) {
    const made = icon(...SIGNS[name]);
    made.setAttribute("data-sign", name);
    marks.set(name, made);
  }
  return marks.get(name).cloneNode(true);
}

// Replace a mark by the mark with this name. Keep the node if it already shows that mark.
export function setMark(node, name) {
  if (node.getAttribute("data-sign") !== name) node.replaceWith(mark(name));
}

export function duration(s) {
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

// Return a number as text, such as 12,345. Do not use toLocaleString: it loads the rules of all languages,
// which delays the first screen.
export const thousands = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");

// Return an integer as text. JavaScript rounds integers above 2^53, so their text begins with "about".
export const whole = (number) => Number.isSafeInteger(number) ? String(number) : `about ${number}`;

export function count(number, one, many = `${one}s`) {
  return `${thousands(number)} ${number === 1 ? one : many}`;
}

// Return a date and time in UTC. A broker may send any integer; return those beyond JavaScript's dates as a number of ms.
export function dateOf(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? `${whole(ms)} ms` : at.toISOString();
}

export function clock(ms) {
  const at = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const today = new Date().toDateString() === at.toDateString();
  return today ? time : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

export function roleOf(id) {
  return id === 0 ? "master" : `slave ${whole(id)}`;
}

export const topicLink = (topic) => `#/topics/${encodeURIComponent(topic)}`;
export const brokerLink = (row) => `#/brokers/${encodeURIComponent(row.cluster)}/${encodeURIComponent(row.broker_addr)}`;
