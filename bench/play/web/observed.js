/** Measures of a lesson, computed from the pictures (states of all designs) of the session. This module does no I/O. */

/** A lesson's orders, all changes since the first of them, and the quiet time (without a fault) before it. */
export class Observed {
  /**
   * @param {import("./picture.js").History} history
   * @param {import("./calm.js").Calm} calm
   * @param {Map<string, object>} acts The program's answer to each order of the lesson, by the step's id.
   * @param {string[]} names Designs that ran when the lesson began.
   */
  constructor(history, calm, acts, names) {
    Object.assign(this, { history, calm, acts, names });
  }

  /** Return the newest picture of a design. */
  now(name) {
    return find(this.history.last, name);
  }

  /** Return the time in ms between two steps. */
  between(act, until) {
    return this.acts.get(until).at_ms - this.acts.get(act).at_ms;
  }

  /** Return the process that a step hit in a design, or null if it hit none. */
  target(name, act) {
    const outcome = this.acts.get(act).outcomes.find(({ design }) => design === name);
    return outcome?.result === "applied" ? outcome.target || this.acts.get(act).order.target : null;
  }

  /** Return the instant at which the program began a step: clients may notice a broker's end before the step is done. */
  #begun(act) {
    const { id, at_ms: at } = this.acts.get(act);
    return this.history.changes.find((change) => change.id === id)?.mark?.at_ms ?? at;
  }

  /** Return the time in ms from the begin of a step until the test first held; null if it never held. */
  first(name, act, test) {
    const from = this.#begun(act);
    for (const state of this.history.pictures(from)) {
      if (test(find(state, name))) return Math.max(0, state.at_ms - from);
    }
    return null;
  }

  /** Return the time in ms from a step until the test held and did not fail again; null if it does not hold at the end. */
  settled(name, act, test, until = null) {
    const from = this.acts.get(act).at_ms;
    let since = null;
    for (const state of this.#pictures(act, until)) {
      if (!test(find(state, name))) since = null;
      else since ??= Math.max(0, state.at_ms - from);
    }
    return since;
  }

  /** Return the total time in ms for which the test held, from one step until another step or until now. */
  during(name, act, test, until = null) {
    let sum = 0;
    let since = null;
    let last = 0;
    for (const state of this.#pictures(act, until)) {
      last = state.at_ms;
      const holds = test(find(state, name));
      if (since !== null && !holds) {
        sum += last - since;
        since = null;
      } else if (holds) since ??= last;
    }
    return since === null ? sum : sum + Math.max(0, this.#end(until) - since);
  }

  /** Return the design's counters: numbers of answers since the last fault, by verdict. */
  counters(name) {
    return this.now(name).counters;
  }

  /** Return the comparison of the answers after and before a fault, see `Calm.compare`; null if there is none. */
  compared(name, act) {
    return this.calm.compare(name, this.#begun(act), this.history.last.at_ms);
  }

  /**
   * Return the length of the quiet time before the first order, and each design's answers in it that were not right.
   *
   * @returns {{ms: number, bad: Object<string, object>} | null} Null if there was no quiet time before the order.
   */
  quiet() {
    const first = Math.min(...[...this.acts.keys()].map((act) => this.#begun(act)));
    const begins = this.names.map((name) => this.calm.since(name, first));
    if (begins.includes(null)) return null;
    const from = Math.max(...begins);
    return { ms: first - from, bad: Object.fromEntries(this.names.map((name) => [name, this.calm.bad(name, from, first)])) };
  }

  /**
   * Return a server's answers to a client after a step: each answer that was not right, and each that differs from the
   * answer before. If there is none, return the present answer, because the answers since the step were equal to it.
   */
  answers(name, client, server, act) {
    const { at_ms: from } = this.acts.get(act);
    const found = new Map();
    for (const state of this.#pictures(act, null)) {
      const { last } = find(state, name).clients.find((one) => one.name === client);
      if (last?.server === server && last.brokers) found.set(last.done_ms, last);
    }
    const all = [...found.values()];
    const later = all.filter(({ done_ms: done }) => done > from);
    return later.length ? later : all.slice(-1);
  }

  *#pictures(act, until) {
    yield* this.history.pictures(this.acts.get(act).at_ms, this.#end(until));
  }

  #end(until) {
    return until === null ? this.history.last.at_ms : this.acts.get(until).at_ms - 1;
  }
}

function find(state, name) {
  return state.designs.find((design) => design.name === name);
}
