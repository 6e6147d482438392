/**
 * One panel for each design. A panel has a heading, numbers of answers since the fault, and a drawing of the processes.
 */

import { Cluster } from "/drawings/cluster.js";
import { icon } from "/drawings/states.js";
import { html, set, write } from "/drawings/svg.js";
import { knownBy, serverState, total } from "./picture.js";
import { DESIGNS, before, counted, named } from "./words.js";

const COUNTED = ["wrong", "stale", "refused", "none"];

export class Panels {
  /**
   * @param {HTMLElement} host
   * @param {(design: string, id: string, element: Element) => void} onPick Called when the user picks a process or a
   *   link.
   */
  constructor(host, onPick) {
    Object.assign(this, { host, onPick, panels: new Map() });
  }

  /**
   * Show a state of all designs.
   *
   * @param {object} state
   * @param {Map<string, object[]>} traffic Maps a design to the links over which bytes passed; empty for the past.
   * @param {boolean} isPast True for a past state. A past state and a saved session show no ages of answers: the log
   *   omits answers without a change.
   * @param {import("./calm.js").Calm} calm
   * @param {string} ago Age of the shown state in words; empty for the present state.
   */
  show(state, traffic, isPast, calm, ago) {
    const names = state.designs.map(({ name }) => name);
    for (const [name, { panel }] of this.panels) {
      if (names.includes(name)) continue;
      panel.remove();
      this.panels.delete(name);
    }
    for (const design of state.designs) this.#show(design, state, traffic.get(design.name) ?? [], isPast, calm, ago);
  }

  /** Return the drawing of a design. */
  drawing(design) {
    return this.panels.get(design).cluster;
  }

  #panel(name) {
    if (!this.panels.has(name)) {
      const title = html("h3", { id: `design-${name}` }, DESIGNS[name].name);
      const then = html("p", { class: "then", hidden: true });
      const phase = html("p", { class: "phase", hidden: true });
      const counts = html("ul", { class: "counts" });
      const usage = html("p", { class: "usage" });
      const drawing = html("div", { class: "drawing" });
      const panel = html("section", { class: "design", "data-design": name, "aria-labelledby": title.id },
        html("div", { class: "title" }, title, then), html("p", { class: "about" }, DESIGNS[name].about), phase, counts, drawing, usage);
      const cluster = new Cluster(drawing, {
        label: `Cluster of ${DESIGNS[name].name}. Arrow keys move between processes, Enter opens the list of faults.`,
        onPick: (id, element) => this.onPick(name, id, element),
      });
      this.host.append(panel);
      this.panels.set(name, { panel, then, phase, counts, usage, cluster });
    }
    return this.panels.get(name);
  }

  #show(design, state, traffic, isPast, calm, ago) {
    const { panel, then, phase, counts, usage, cluster } = this.#panel(design.name);
    set(then, { hidden: !ago });
    write(then, ago);
    set(panel, { "data-phase": design.phase });
    set(phase, { hidden: design.phase === "running" });
    write(phase, design.phase === "starting" ? "It starts: three servers, three brokers and four clients."
      : design.phase === "running" ? "" : `It does not run: ${design.reason || design.phase}.`);
    write(usage, design.usage ? `${counted(design.usage.processes, "process", "processes")}, `
      + `${Math.round(design.usage.memory_bytes / 1e6)} MB, ${design.usage.cpu.toFixed(2)} cores` : "");
    const compared = state.mark && calm.compare(design.name, state.mark.at_ms, state.at_ms);
    showCounts(counts, design.counters, state.mark !== null, before(compared, state.mark && state.at_ms - state.mark.at_ms));
    cluster.show(drawn(design, state.at_ms, traffic, !isPast && !state.replayed));
  }
}

/** Show the numbers of answers that were not right, since the fault and before it. Omit numbers that are 0. */
function showCounts(host, counters, isFault, earlier) {
  const shown = COUNTED.filter((name) => counters[name] > 0);
  const key = JSON.stringify([isFault, earlier, total(counters) > 0, shown.map((name) => counters[name])]);
  if (host.dataset.key === key) return;
  host.dataset.key = key;
  const since = isFault ? "Since the fault" : "Since the start";
  const items = shown.map((name) => html("li", { "data-verdict": name, "data-count": counters[name], class: `s-answer-${name}` },
    icon("answer", name), `${counters[name]} ${name === "none" ? "without an answer" : name}`));
  if (!items.length) {
    items.push(total(counters) ? html("li", { "data-verdict": "right", class: "s-answer-right" }, icon("answer", "right"), "only right answers")
      : html("li", { class: "since" }, "no question yet"));
  }
  if (earlier) items.push(html("li", { class: "earlier" }, `before it: ${earlier}`));
  host.replaceChildren(html("li", { class: "since" }, `${since}:`), ...items);
}

/** Convert a design to the form that the class for drawings accepts, with or without the ages of answers. */
function drawn(design, now, traffic, hasAges) {
  const busy = new Set(traffic.map(({ dialler, acceptor }) => `${dialler}>${acceptor}`));
  return {
    around: DESIGNS[design.name].around ?? null,
    isForeign: design.name === "zookeeper",
    brokers: design.brokers.map(({ name, life }) => ({ id: name, name: named(name), state: life })),
    servers: design.servers.map((server) => ({
      id: server.name, name: named(server.name), state: serverState(server),
      // A server that does not serve reports no routes. So its list of brokers is empty even if it knows brokers.
      lists: server.read_ms === null || (!server.serves && !server.brokers.length) ? null : server.brokers,
      isOld: !server.answers || !server.serves,
    })),
    clients: design.clients.map((client) => ({
      id: client.name, name: named(client.name), answer: client.last?.verdict ?? null,
      age: client.last && hasAges ? Math.max(0, now - client.last.done_ms) : null,
      lists: knownBy(client, design),
      why: client.last?.why ? named(client.last.why) : "",
    })),
    links: design.links.map((link) => ({ from: link.dialler, to: link.acceptor, ...condition(link, design, busy) })),
  };
}

function condition(link, design, busy) {
  const [there, back] = [link.forward === "cut", link.back === "cut"];
  if (there || back) return { state: "cut", way: there && back ? "both" : there ? "forth" : "back" };
  if (link.forward === "unknown" || link.back === "unknown") return { state: "unknown" };
  if (link.forward_ms || link.back_ms) return { state: "slow" };
  const client = design.clients.find(({ name }) => name === link.dialler);
  if (client) return { state: client.asks === link.acceptor ? "asks" : "idle" };
  return { state: busy.has(`${link.dialler}>${link.acceptor}`) ? "talks" : "idle" };
}
