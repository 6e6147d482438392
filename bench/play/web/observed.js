/** Measures for a lesson, computed from the successive states of all designs in a session. This module does no I/O. */

/** The commands of a lesson, all changes since its first command, and the time without a fault before this command. */
export class Observed {
  /**
   * @param {import("./picture.js").History} history
   * @param {import("./calm.js").Calm} calm
   * @param {Map<string, object>} acts The program's answer to each command of the lesson, by the step's id.
   * @param {string[]} names Designs that ran when the lesson began.
   */
  constructor(history, calm, acts, names) {
    Object.assign(this, { history, calm, acts, names });
  }

  /** Return the newest state of a design. */
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

  /** Return the start of a step, not its end, because clients may notice a broker's end before the step is done. */
  #begun(act) {
    const { id, at_ms: at } = this.acts.get(act);
    return this.history.changes.find((change) => change.id === id)?.mark?.at_ms ?? at;
  }

  /**
   * Return the time in ms from the start of a step until `test` was first true for the design; null if it never was.
   */
  first(name, act, test) {
    const from = this.#begun(act);
    for (const state of this.history.pictures(from)) {
      if (test(find(state, name))) return Math.max(0, state.at_ms - from);
    }
    return null;
  }

  /** Return the time in ms from a step until `test` became true and stayed true; null if it is false at the end. */
  settled(name, act, test, until = null) {
    const from = this.acts.get(act).at_ms;
    let since = null;
    for (const state of this.#pictures(act, until)) {
      if (!test(find(state, name))) since = null;
      else since ??= Math.max(0, state.at_ms - from);
    }
    return since;
  }

  /** Return the total time in ms for which `test` was true, from the step `act` to the step `until`, or until now. */
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

  /** Return the result of `Calm.compare` for the fault of a step: the answers before and after this fault. */
  compared(name, act) {
    return this.calm.compare(name, this.#begun(act), this.history.last.at_ms);
  }

  /**
   * Return the length of the quiet time before the first command, and the answers that were not right during it.
   *
   * @returns {{ms: number, bad: Object<string, object>} | null} Null if there was no quiet time before the command.
   */
  quiet() {
    const first = Math.min(...[...this.acts.keys()].map((act) => this.#begun(act)));
    const begins = this.names.map((name) => this.calm.since(name, first));
    if (begins.includes(null)) return null;
    const from = Math.max(...begins);
    return { ms: first - from, bad: Object.fromEntries(this.names.map((name) => [name, this.calm.bad(name, from, first)])) };
  }

  /**
   * Return a server's answers to a client after a step, as the log has them. The log omits a right answer that is equal
   * to the answer before. So if the log has no answer after the step, return the last answer: later answers were equal.
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
