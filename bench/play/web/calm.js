/**
 * Records clients' answers in times without a fault. Answers that are not right then show that the machine is slow.
 * This module does no I/O.
 */

import { isWhole } from "./picture.js";

const BAD = ["wrong", "stale", "refused", "none"];
/** Highest number of stored answers for each design. Only answers that were not right are stored. */
const KEPT_MAX = 5000;
/** Shortest time without a fault, in ms, from which the page draws conclusions. */
const QUIET_MIN_MS = 2000;
/** Longest time in ms between an answer that shows a fault and the observation of the processes that shows it. */
const LOOK_MS = 1000;
const NOISE_MS = 60000;

/** Return whether every process of a design runs and every link is open. */
function isIntact(design) {
  return design.phase === "running"
    && [...design.servers, ...design.brokers].every(({ life }) => life === "up")
    && design.links.every((link) => link.forward !== "cut" && link.back !== "cut" && !link.forward_ms && !link.back_ms);
}

/**
 * The quiet times of each design (times without a fault), and the answers that were not right.
 *
 * A quiet time begins when all processes run, all links are open and all answers are right. It ends when a process or a
 * link fails, or when somebody causes a fault. A wrong, stale or missing answer does not end it.
 */
export class Calm {
  constructor(base) {
    this.spans = new Map();
    this.bads = new Map();
    this.done = new Map();
    for (const design of base.designs) this.#begin(design, base.at_ms);
  }

  /** Add a change; `state` is the state of all designs after the change. */
  add(change, state) {
    if (change.designs) {
      for (const design of state.designs) this.#begin(design, change.at_ms);
    }
    if (change.mark) {
      for (const spans of this.spans.values()) end(spans, change.mark.at_ms);
    }
    const design = state.designs.find(({ name }) => name === change.design);
    if (!design) return;
    if (change.client) this.#note(design.name, change.client);
    this.#look(design, change.at_ms);
  }

  /** Return the duration in ms of a design's present quiet time; 0 if it has none now. */
  lasts(name, now) {
    const span = this.spans.get(name)?.at(-1);
    return span && span.to === null ? now - span.from : 0;
  }

  /** Return the start of the quiet time that contains an instant; null if there is none, or if it is too short. */
  since(name, at) {
    const span = this.spans.get(name)?.findLast(({ from, to }) => from <= at && (to === null || to >= at));
    return span && at - span.from >= QUIET_MIN_MS ? span.from : null;
  }

  /** Return the number of a design's wrong, stale, refused and missing answers between two instants. */
  bad(name, from, to) {
    const counts = { wrong: 0, stale: 0, refused: 0, none: 0 };
    for (const { at, verdict } of this.bads.get(name) ?? []) {
      if (from <= at && at < to) counts[verdict] += 1;
    }
    return counts;
  }

  /**
   * Compare the answers after a fault with the answers in the quiet time before it, over two equally long times.
   *
   * @returns {{ms: number, before: object, since: object} | null} Length of each time, and the numbers of answers that
   *   were not right before and after the fault; null if there was no quiet time before the fault.
   */
  compare(name, fault, now) {
    const quiet = this.since(name, fault);
    if (quiet === null) return null;
    const ms = Math.min(now - fault, fault - quiet);
    return { ms, before: this.bad(name, fault - ms, fault), since: this.bad(name, fault, fault + ms) };
  }

  /**
   * Return the number of answers that were not right although their design had no fault, over all designs. For each
   * design, count the last minute; if the design has a fault now, count the minute before the fault.
   */
  noise(now) {
    let sum = 0;
    for (const [name, spans] of this.spans) {
      const end = spans.at(-1)?.to ?? now;
      sum += this.#byThemselves(name, end - NOISE_MS, end).length;
    }
    return sum;
  }

  /** Return the number of a design's answers that were not right, in the quiet times since the instant `fault`. */
  later(name, fault, now) {
    return this.#byThemselves(name, fault, now).length;
  }

  /** Return a design's answers that were not right, in the quiet times between two instants. */
  #byThemselves(name, begin, end) {
    const spans = this.spans.get(name)?.filter(({ to }) => to === null || to > begin) ?? [];
    return (this.bads.get(name) ?? []).filter(({ at }) => at > begin && at <= end
      && spans.some(({ from, to }) => from <= at && at < (to ?? end) - LOOK_MS));
  }

  #begin(design, at) {
    if (!this.spans.has(design.name)) {
      this.spans.set(design.name, []);
      this.bads.set(design.name, []);
    }
    for (const client of design.clients) this.#note(design.name, client);
    this.#look(design, at);
  }

  #look(design, at) {
    const spans = this.spans.get(design.name);
    if (spans.at(-1)?.to === null) {
      if (!isIntact(design)) end(spans, at);
    } else if (isWhole(design)) spans.push({ from: at, to: null });
  }

  /** Record a client's last answer, unless it is recorded already: a change of a client may bring no new answer. */
  #note(name, { name: client, last }) {
    const key = `${name} ${client}`;
    if (!last || this.done.get(key) === last.done_ms) return;
    this.done.set(key, last.done_ms);
    if (!BAD.includes(last.verdict)) return;
    const bads = this.bads.get(name);
    bads.push({ at: last.done_ms, verdict: last.verdict });
    if (bads.length > KEPT_MAX) bads.shift();
  }
}

function end(spans, at) {
  const last = spans.at(-1);
  if (last?.to === null) last.to = Math.max(last.from, at);
}

/** Return the number of answers that were not right. */
export function badOf(counts) {
  return BAD.reduce((sum, name) => sum + counts[name], 0);
}

/**
 * Return whether the fault need not be the cause of answers that were not right: before it, there were about as many.
 */
export function isNoise(compared) {
  return compared !== null && badOf(compared.before) > 0 && badOf(compared.since) <= 2 * badOf(compared.before);
}
