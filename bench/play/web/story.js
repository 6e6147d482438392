/**
 * Events, and times of equal verdicts on a client's answers, computed from a session's changes. This module does no
 * I/O.
 */

import { ANSWERS, SERVERS } from "/drawings/states.js";
import { serverState } from "./picture.js";
import { DESIGNS, failures, leaders, list, named, orderText } from "./words.js";

const HEALS = new Set(["heal", "resume", "start"]);
const QUIET = new Set(["make-topic", "timers", "reconnect"]);

/**
 * Return the events that a change caused, as the list of events shows them.
 *
 * @returns {{at: number, kind: string, text: string, design: string | null, isMinor: boolean}[]} A minor event is only
 *   in the list; the timeline has no mark for it.
 */
export function eventsOf(before, change) {
  const event = (kind, text, isMinor = false) => ({ at: change.at_ms, kind, text, design: change.design ?? null, isMinor });
  if (change.done) {
    const { order } = change.done;
    const kind = HEALS.has(order.do) ? "heal" : QUIET.has(order.do) ? "change" : "fault";
    const where = order.designs?.length ? list(order.designs.map((name) => DESIGNS[name].name)) : "All designs";
    const notes = [leaders(change.done), failures(change.done)].filter(Boolean).join(". ");
    return [event(kind, `${where}: ${orderText(order)}${notes && ` (${notes})`}`)];
  }
  const design = before.designs.find(({ name }) => name === change.design);
  if (!design) return [];
  const name = DESIGNS[change.design].name;
  const told = (kind, text, isMinor) => event(kind, `${name}: ${text}`, isMinor);
  if (change.phase) return [told("change", `${change.phase}${change.reason ? `, ${change.reason}` : ""}`)];
  if (change.topics) return [told("change", `the topics are ${list(change.topics)}`, true)];
  if (change.server) return serverEvents(design, change.server, told);
  if (change.broker) return lifeEvents(design.brokers, change.broker, told);
  if (change.client) return clientEvents(design, change.client, told);
  return [];
}

function lifeEvents(all, now, told) {
  const was = all.find(({ name }) => name === now.name);
  return was && was.life !== now.life ? [told("change", `${named(now.name)} is ${now.life}`)] : [];
}

function serverEvents(design, now, told) {
  const was = design.servers.find(({ name }) => name === now.name);
  if (!was) return [];
  const events = [];
  const [old, state] = [serverState(was), serverState(now)];
  if (old !== state) {
    events.push(told(state === "leader" ? "leader" : "change",
      state === "leader" ? `${named(now.name)} is the leader now`
        : state === "silent" ? `${named(now.name)} does not answer`
        : state === "leaderless" ? `${named(now.name)} has no leader` : `${named(now.name)} is ${SERVERS[state].word}`,
      was.life === now.life && (old === "silent" || state === "silent")));
  }
  if (!now.answers) return events;
  const gone = was.brokers.filter((broker) => !now.brokers.includes(broker));
  const came = now.brokers.filter((broker) => !was.brokers.includes(broker));
  if (gone.length) events.push(told("dropped", `${named(now.name)} dropped ${list(gone.map(named))}`));
  if (came.length) events.push(told("listed", `${named(now.name)} now lists ${list(came.map(named))}`));
  return events;
}

function clientEvents(design, now, told) {
  const was = design.clients.find(({ name }) => name === now.name);
  if (!now.last || was?.last?.verdict === now.last.verdict) return [];
  const { verdict, why, server } = now.last;
  const word = verdict === "none" ? "got no answer" : `got ${verdict === "uncounted" ? "an" : "a"} ${ANSWERS[verdict].word} answer`;
  const by = server ? ` from ${named(server)}` : "";
  return [told("change", `${named(now.name)} ${verdict === "refused" ? "was refused an answer" : word}${by}${why && verdict !== "none" ? `: ${named(why)}` : ""}`, true)];
}

/** For each client, the times in which all its answers had the same verdict; the timeline draws them as bands. */
export class Lanes {
  constructor(base) {
    this.spans = new Map();
    this.#restart(base.designs, base.at_ms);
  }

  /** Add a change. */
  add(change) {
    if (change.designs) this.#restart(change.designs, change.at_ms);
    if (change.phase && change.phase !== "running") this.#end(change.design, change.at_ms);
    if (change.client) this.#turn(change.design, change.client, change.at_ms);
  }

  /** Drop the times that ended before an instant. */
  drop(before) {
    for (const clients of this.spans.values()) {
      for (const spans of clients.values()) spans.splice(0, spans.filter(({ to }) => to !== null && to < before).length);
    }
  }

  /** Return one row for each client, in the form that the class `Timeline` accepts. */
  groups() {
    const order = Object.keys(DESIGNS);
    const designs = [...this.spans].sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
    return designs.map(([design, clients]) => ({
      name: DESIGNS[design].name,
      lanes: [...clients].map(([client, spans]) => ({
        id: `${design} ${client}`, name: named(client), family: "answer", spans,
      })),
    }));
  }

  #restart(designs, at) {
    for (const design of designs) {
      if (design.phase !== "running") this.#end(design.name, at);
      else for (const client of design.clients) this.#turn(design.name, client, at);
    }
  }

  /** End all bands of a design whose clients have ended. */
  #end(design, at) {
    for (const spans of this.spans.get(design)?.values() ?? []) if (spans.length) spans.at(-1).to ??= at;
  }

  #turn(design, client, at) {
    if (!this.spans.has(design)) this.spans.set(design, new Map());
    const clients = this.spans.get(design);
    if (!clients.has(client.name)) clients.set(client.name, []);
    const spans = clients.get(client.name);
    const state = client.last?.verdict ?? "unknown";
    const last = spans.at(-1);
    if (last?.state === state && last.to === null) return;
    if (last) last.to ??= at;
    spans.push({ from: at, to: null, state });
  }
}
