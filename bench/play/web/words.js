/** Functions that put the program's messages into words. */

import { duration } from "/drawings/states.js";

export const DESIGNS = {
  independent: {
    name: "Independent",
    about: "The nameservers do not know each other. Every broker reports to each of them. This is RocketMQ's design.",
  },
  raft: {
    name: "Raft",
    about: "The nameservers share one table. A leader puts the changes in order, and a majority must store each of them.",
    around: "nameservers, one group",
  },
  zookeeper: {
    name: "ZooKeeper",
    about: "No nameserver runs here: brokers and clients use a ZooKeeper ensemble, a separate system. RocketMQ's predecessor did it this way.",
    around: "ensemble of ZooKeeper",
  },
};

/** Replace names of processes in a text by the names that the page shows: "nameserver-1" becomes "server 1". */
export function named(text) {
  return text.replace(/\bnameserver-(\d+)/g, "server $1").replace(/\b(broker|client)-(\d+)/g, "$1 $2");
}

/** Return a command in words, such as "kill server 1" or "cut server 0 off from all others, one way". */
export function orderText({ do: verb, target, to, oneway, delay_ms: delay, topic, divisor }) {
  const aim = target === "leader" ? "the leader" : named(target ?? "");
  switch (verb) {
    case "cut": return `cut ${aim} off from ${to ? named(to) : "all others"}${oneway ? ", one way" : ""}`;
    case "slow": return delay ? `slow links of ${aim}${to ? ` to ${named(to)}` : ""} by ${delay} ms${oneway ? ", one way" : ""}`
      : `end the delay of ${aim}`;
    case "part": return `part ${aim}, client 0 and broker 0 from all others`;
    case "reconnect": return `let ${aim} connect anew, to ${named(to)}`;
    case "heal": return "heal all links, and let paused processes go on";
    case "resume": return `let ${aim} go on`;
    case "restart-empty": return `restart ${aim} empty`;
    case "stop": return `stop ${aim} kindly`;
    case "make-topic": return `make topic ${topic}`;
    case "timers": return divisor === 1 ? "start again with RocketMQ's own timers" : `start again with timers divided by ${divisor}`;
    default: return `${verb} ${aim}`;
  }
}

/** Return in words the process that "the leader" named in each design; empty if the target is not the leader. */
export function leaders({ order, outcomes }) {
  if (order.target !== "leader") return "";
  return list(outcomes.filter(({ target }) => target).map(({ design, target }) => `${named(target)} of ${DESIGNS[design].name}`));
}

/** Return in words each design in which a command was not applied, with the reason; empty if there is none. */
export function failures({ outcomes }) {
  return outcomes.filter(({ result }) => result !== "applied")
    .map(({ design, result, reason }) => `${DESIGNS[design].name}: ${result}${reason ? `, ${named(reason)}` : ""}`).join(". ");
}

/** Return a number with its noun: "1 wrong answer", "3 wrong answers". */
export function counted(n, one, many = `${one}s`) {
  return `${n} ${n === 1 ? one : many}`;
}

/** Return words as a list in a sentence: "a", "a and b", "a, b and c". */
export function list(things) {
  return things.length < 2 ? things.join("") : `${things.slice(0, -1).join(", ")} and ${things.at(-1)}`;
}

const COUNTED = { wrong: "wrong", stale: "stale", refused: "refused", none: "without an answer" };

/** Return whether any answer was not right. */
export function isTroubled(counters) {
  return Object.keys(COUNTED).some((name) => counters[name] > 0);
}

/**
 * Return the numbers of answers that were not right, such as "2 wrong, 1 refused"; "only right answers" if all are 0.
 */
export function troubles(counters) {
  const parts = Object.keys(COUNTED).filter((name) => counters[name] > 0).map((name) => `${counters[name]} ${COUNTED[name]}`);
  return parts.length ? parts.join(", ") : "only right answers";
}

/**
 * Return the numbers of answers that were not right before a fault, and the time in which they were counted:
 * "2 refused in 4 s".
 *
 * The time is "as much time" if it is as long as the time since the fault. Empty if all answers were right, or if there
 * was no time without a fault before the fault.
 */
export function before(compared, sinceMs) {
  if (!compared || !isTroubled(compared.before)) return "";
  return `${troubles(compared.before)} in ${compared.ms < sinceMs ? duration(compared.ms) : "as much time"}`;
}
