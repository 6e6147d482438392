/** Measures of a lesson, taken from the pictures of the session so far (pure). */

/** A lesson's orders, all that happened since the first of them, and the quiet time before it. */
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

  /** Return the ms between two steps. */
  between(act, until) {
    return this.acts.get(until).at_ms - this.acts.get(act).at_ms;
  }

  /** Return the process that a step hit in a design, or null if it hit none. */
  target(name, act) {
    const outcome = this.acts.get(act).outcomes.find(({ design }) => design === name);
    return outcome?.result === "applied" ? outcome.target || this.acts.get(act).order.target : null;
  }

  /** Return when the program began a step: while a broker ends, clients may notice it already. */
  #begun(act) {
    const { id, at_ms: at } = this.acts.get(act);
    return this.history.changes.find((change) => change.id === id)?.mark?.at_ms ?? at;
  }

  /** Return the ms from the begin of a step until the test first held, or null. */
  first(name, act, test) {
    const from = this.#begun(act);
    for (const state of this.history.pictures(from)) {
      if (test(find(state, name))) return Math.max(0, state.at_ms - from);
    }
    return null;
  }

  /** Return the ms from a step until the test held for good, or null if it does not hold now. */
  settled(name, act, test, until = null) {
    const from = this.acts.get(act).at_ms;
    let since = null;
    for (const state of this.#pictures(act, until)) {
      if (!test(find(state, name))) since = null;
      else since ??= Math.max(0, state.at_ms - from);
    }
    return since;
  }

  /** Return for how many ms the test held between a step and another one, or until now. */
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

  /** Return the answers since the last fault that were not right, and the number of all. */
  counters(name) {
    return this.now(name).counters;
  }

  /** Return the answers since a fault that were not right beside those of as much time before it, or null. */
  compared(name, act) {
    return this.calm.compare(name, this.#begun(act), this.history.last.at_ms);
  }

  /**
   * Return the quiet time before the first order, and each design's answers in it that were not right.
   *
   * @returns {{ms: number, bad: Object<string, object>} | null} Null if something was broken.
   */
  quiet() {
    const first = Math.min(...[...this.acts.keys()].map((act) => this.#begun(act)));
    const begins = this.names.map((name) => this.calm.since(name, first));
    if (begins.includes(null)) return null;
    const from = Math.max(...begins);
    return { ms: first - from, bad: Object.fromEntries(this.names.map((name) => [name, this.calm.bad(name, from, first)])) };
  }

  /**
   * Return a server's answers to a client after a step: each that was not right, and each that differs from the one
   * before. If there is no such one, then the present one: it is as the one before the step was.
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
