/** Measures of a lesson, taken from the pictures of the session so far (pure). */

/** A lesson's orders and all that happened since the first of them. */
export class Observed {
  /**
   * @param {import("./picture.js").History} history
   * @param {Map<string, object>} acts The program's answer to each order of the lesson, by the step's id.
   * @param {string[]} names Designs that ran when the lesson began.
   */
  constructor(history, acts, names) {
    Object.assign(this, { history, acts, names });
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

  /** Return when the program began the newest fault: while a broker ends, clients may notice it already. */
  #begun(act) {
    const { id, at_ms: at } = this.acts.get(act);
    const { mark } = this.history.last;
    return mark?.action === id ? mark.at_ms : at;
  }

  /** Return the ms from the begin of the newest fault until the test first held, or null. */
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
