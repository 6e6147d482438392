/**
 * The state of all designs ("picture"), and the effect of a change on this state. This module does no I/O.
 *
 * The fields are those of bench/play/model.py. A state is never altered: a change makes a new state, which shares the
 * unchanged parts with the old state. So the states of many instants need little memory.
 */

/** Return the state after this change. */
export function apply(state, change) {
  const next = { ...state, id: change.id, at_ms: change.at_ms };
  if (change.designs) next.designs = change.designs;
  if (change.divisor) Object.assign(next, { divisor: change.divisor, mark: null }); // the designs start again
  if (change.mark) {
    next.mark = change.mark;
    const counters = { since_ms: change.mark.at_ms, right: 0, stale: 0, wrong: 0, refused: 0, none: 0, uncounted: 0 };
    next.designs = next.designs.map((design) => ({ ...design, counters }));
  }
  if (!change.design) return next;
  next.designs = next.designs.map((design) => design.name === change.design ? applyTo(design, change) : design);
  return next;
}

function applyTo(design, change) {
  const next = { ...design };
  if (change.phase) Object.assign(next, { phase: change.phase, reason: change.reason ?? "" });
  if (change.topics) next.topics = change.topics;
  if (change.server) next.servers = replaced(design.servers, change.server);
  if (change.broker) next.brokers = replaced(design.brokers, change.broker);
  if (change.client) next.clients = replaced(design.clients, change.client);
  if (change.counters) next.counters = change.counters;
  if (change.links) next.links = change.links.reduce((all, link) => replaced(all, link, linkName), design.links);
  return next;
}

const linkName = (link) => `${link.dialler}>${link.acceptor}`;

function replaced(all, one, key = ({ name }) => name) {
  const at = all.findIndex((other) => key(other) === key(one));
  return at < 0 ? [...all, one] : all.with(at, one);
}

/**
 * Return the state with the times and counters of a tick (the program's message twice a second).
 *
 * The state may contain a change that is newer than the tick. So take each value from the newer of the two.
 */
export function applyTick(state, tick) {
  const designs = state.designs.map((design) => {
    const of = tick.designs.find(({ design: name }) => name === design.name);
    if (!of) return design;
    const aged = (value, field, instant) => value && instant > (value[field] ?? -1) ? { ...value, [field]: instant } : value;
    return {
      ...design,
      counters: newer(of.counters, design.counters),
      usage: of.usage ?? design.usage,
      servers: design.servers.map((server) => aged(server, "read_ms", of.read_ms[server.name])),
      clients: design.clients.map((client) => ({ ...client, last: aged(client.last, "done_ms", of.done_ms[client.name]) })),
    };
  });
  return { ...state, at_ms: Math.max(state.at_ms, tick.at_ms), designs };
}

const VERDICTS = ["right", "stale", "wrong", "refused", "none", "uncounted"];

/** Return the number of all answers. */
export function total(counters) {
  return VERDICTS.reduce((sum, name) => sum + counters[name], 0);
}

function newer(a, b) {
  if (a.since_ms !== b.since_ms) return a.since_ms > b.since_ms ? a : b;
  return total(a) >= total(b) ? a : b;
}

/** Number of changes between two stored states. Any other state is computed from the stored state before it. */
const KEPT_EVERY = 400;
/** Highest number of stored changes; the program's log has the same limit. */
const CHANGES_MAX = 20000;

/** The session so far: the state at its start, or before the oldest stored change, and all changes since then. */
export class History {
  constructor({ base, changes }) {
    this.base = base;
    this.changes = [];
    this.kept = [base];
    this.last = base;
    for (const change of changes) this.add(change);
  }

  /** Append a change; ignore a change that the history has already. */
  add(change) {
    if (change.id <= this.last.id) return;
    this.last = apply(this.last, change);
    this.changes.push(change);
    if (this.changes.length % KEPT_EVERY === 0) this.kept.push(this.last);
    if (this.changes.length > CHANGES_MAX) {
      this.changes = this.changes.slice(KEPT_EVERY);
      this.kept.shift();
      [this.base] = this.kept;
    }
  }

  /** Return the state at an instant. */
  at(ms) {
    const count = this.#before(ms);
    const from = Math.floor(count / KEPT_EVERY);
    let state = this.kept[from];
    for (let n = from * KEPT_EVERY; n < count; n += 1) state = apply(state, this.changes[n]);
    return { ...state, at_ms: ms };
  }

  /** Return the number of changes up to an instant, including changes at that instant. */
  #before(ms) {
    let [low, high] = [0, this.changes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.changes[middle].at_ms <= ms) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Yield the state at the instant `from`, then the state after each later change up to the instant `until`. */
  *pictures(from, until = Infinity) {
    let state = this.at(from);
    yield state;
    for (let n = this.#before(from); n < this.changes.length && this.changes[n].at_ms <= until; n += 1) {
      state = apply(state, this.changes[n]);
      yield state;
    }
  }
}

/** Return the word for a server's state that selects the symbol in the drawings. */
export function serverState({ life, answers, role, serves }) {
  if (life !== "up") return life;
  if (!answers) return "silent";
  if (role === "leader") return "leader";
  if (role === "follower") return serves ? "follower" : "leaderless";
  return role === "independent" ? "up" : "leaderless";
}

/** Return the brokers in a client's cached route of the newest topic; null if the client has no such route. */
export function knownBy(client, design) {
  return client.cached.find(({ topic }) => topic === design.topics.at(-1))?.brokers ?? null;
}

/** Return whether every process runs, every link is open, every server lists every broker, and every answer is right. */
export function isWhole(design) {
  const names = design.brokers.map(({ name }) => name);
  return design.phase === "running"
    && design.brokers.every(({ life }) => life === "up")
    && design.servers.every((server) => server.life === "up" && server.answers && server.serves
      && names.every((name) => server.brokers.includes(name)))
    && design.links.every((link) => link.forward === "open" && link.back === "open" && !link.forward_ms && !link.back_ms)
    && design.clients.every(({ last }) => last?.verdict === "right");
}
