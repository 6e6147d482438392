/** Answers of a design while nothing is broken: they show how slow the machine is (pure). */

import { isWhole } from "./picture.js";

const BAD = ["wrong", "stale", "refused", "none"];
/** So many answers that were not right are kept of each design. */
const KEPT_MAX = 5000;
/** A shorter quiet time says nothing. */
const QUIET_MIN_MS = 2000;
/** Answers may show an effect so much sooner than a look shows its cause. */
const LOOK_MS = 1000;
const NOISE_MS = 60000;

/** Return whether every process of a design runs and every link is open, however late it answers. */
function isIntact(design) {
  return design.phase === "running"
    && [...design.servers, ...design.brokers].every(({ life }) => life === "up")
    && design.links.every((link) => link.forward !== "cut" && link.back !== "cut" && !link.forward_ms && !link.back_ms);
}

/**
 * The quiet times of each design, and its answers that were not right.
 *
 * A quiet time begins when everything is as it should be. It lasts until something breaks or somebody breaks it; an
 * answer that comes late does not end it.
 */
export class Calm {
  constructor(base) {
    this.spans = new Map();
    this.bads = new Map();
    this.done = new Map();
    for (const design of base.designs) this.#begin(design, base.at_ms);
  }

  /** Take a change, with the picture after it. */
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

  /** Return for how many ms the present quiet time of a design has lasted. */
  lasts(name, now) {
    const span = this.spans.get(name)?.at(-1);
    return span && span.to === null ? now - span.from : 0;
  }

  /** Return when the quiet time began in which an instant lies, or null if something was broken then. */
  since(name, at) {
    const span = this.spans.get(name)?.findLast(({ from, to }) => from <= at && (to === null || to >= at));
    return span && at - span.from >= QUIET_MIN_MS ? span.from : null;
  }

  /** Return the answers of a design between two instants that were not right, by verdict. */
  bad(name, from, to) {
    const counts = { wrong: 0, stale: 0, refused: 0, none: 0 };
    for (const { at, verdict } of this.bads.get(name) ?? []) {
      if (from <= at && at < to) counts[verdict] += 1;
    }
    return counts;
  }

  /**
   * Compare the time since a fault with as much of the quiet time before it, or with all of that if it was shorter.
   *
   * @returns {{ms: number, before: object, since: object} | null} Answers that were not right in both times, each `ms`
   *   long; null if there was no quiet time before.
   */
  compare(name, fault, now) {
    const quiet = this.since(name, fault);
    if (quiet === null) return null;
    const ms = Math.min(now - fault, fault - quiet);
    return { ms, before: this.bad(name, fault - ms, fault), since: this.bad(name, fault, fault + ms) };
  }

  /**
   * Return how many answers of all designs were not right although nothing was broken: in the last minute, or in the
   * minute before something broke that is broken still.
   */
  noise(now) {
    let sum = 0;
    for (const [name, spans] of this.spans) {
      const end = spans.at(-1)?.to ?? now;
      sum += this.#byThemselves(name, end - NOISE_MS, end).length;
    }
    return sum;
  }

  /** Return how many answers of a design since a fault were not right after everything was as before. */
  later(name, fault, now) {
    return this.#byThemselves(name, fault, now).length;
  }

  /** Return the answers that were not right between two instants, and in a quiet time. */
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

  /** Note an answer once: a change of a client may have brought something else. */
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

/** Return whether about as many answers were not right before a fault as since: then they are no sure effect of it. */
export function isNoise(compared) {
  return compared !== null && badOf(compared.before) > 0 && badOf(compared.since) <= 2 * badOf(compared.before);
}
