/**
 * A drawing of one cluster: brokers at the top, servers in the middle, clients at the bottom, and the links between them.
 *
 * The drawing fills the width of its host element; the text keeps its size. `show` changes only the elements
 * that differ, so the focus stays and nothing moves under the pointer. Every process is a button: arrow keys
 * move the focus to the next process, and Enter selects the process.
 */

import { duration, mark, showMark, sign } from "./states.js";
import { html, set, svg, write } from "./svg.js";

const PAD = 2;
const BROKER = { height: 44, top: 1 };
const SERVER = { height: 72, top: 99 };
const CLIENT = { height: 92, top: 236 };
const CHIP = 17;
/** In boxes narrower than this many pixels, the names have a smaller font. */
const NARROW = 80;
const WIDTH_MAX = 560;
/** Largest width in pixels of a letter in the name of the frame around the servers. */
const LETTER = 6.6;
/** Space in pixels between the servers and their frame: above them for their links, below them for the frame's name. */
const AROUND = { above: 27, below: 18, beside: 3 };

export class Cluster {
  /**
   * Build an empty drawing inside `host`; `show` fills it.
   *
   * @param {HTMLElement} host
   * @param {object} choices
   * @param {string} choices.label Name of the drawing, for screen readers.
   * @param {(id: string, element: Element) => void} [choices.onPick] Called when the user selects a process or a link;
   *   a link's id is "FROM>TO". Without `onPick`, the user can select nothing.
   */
  constructor(host, { label, onPick = null }) {
    this.onPick = onPick;
    this.data = null;
    this.nodes = new Map();
    this.links = new Map();
    this.order = [];
    this.around = svg("rect", { class: "cl-around", rx: 9 });
    this.aroundName = svg("g", { class: "cl-around-name" }, svg("rect", { height: 15, rx: 3 }), svg("text", { y: 11.5, "text-anchor": "middle" }));
    this.wires = svg("g", { class: "cl-wires" });
    this.boxes = svg("g");
    this.svg = svg("svg", { class: "cl-svg", role: "group", "aria-label": label }, this.around, this.wires, this.aroundName, this.boxes);
    this.frame = html("div", { class: "cl" }, this.svg);
    host.append(this.frame);
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    this.svg.addEventListener("click", (event) => this.#picked(event.target));
    new ResizeObserver(() => this.#draw()).observe(this.frame);
  }

  /**
   * Show this state of the cluster.
   *
   * @param {object} data
   * @param {{id: string, name: string, state: string, note?: string}[]} data.brokers
   * @param {{id: string, name: string, state: string, lists: string[] | null, note?: string, isOld?: boolean}[]} data.servers
   *   `lists`: ids of the brokers in the server's table, null if unknown; `isOld`: true if `lists` may be out of date.
   * @param {{id: string, name: string, answer: string | null, age: number | null, lists: string[] | null, why?: string}[]}
   *   data.clients `age`: ms since the client's last answer arrived; null if unknown.
   * @param {string | null} [data.around] Name of the group that the servers form; a frame around them shows it.
   * @param {boolean} [data.isForeign] True if that group is another system, such as ZooKeeper.
   * @param {{from: string, to: string, state: string, way?: "both" | "forth" | "back"}[]} data.links
   *   `state`: "asks", "talks", "idle", "slow", "unknown" or "cut"; `way`: blocked direction of a cut link.
   */
  show(data) {
    this.data = data;
    this.#draw();
  }

  /** Return the element of a process, to put a menu beside it. */
  element(id) {
    return this.nodes.get(id)?.box ?? null;
  }

  #key(event) {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#picked(event.target);
      return;
    }
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    const here = this.order.indexOf(event.target.closest("[data-id]")?.dataset.id);
    const next = this.order[here + step];
    if (here < 0 || next === undefined) return;
    event.preventDefault();
    this.#rove(next);
    this.nodes.get(next).box.focus();
  }

  /** Make this process the only one that the Tab key reaches. The arrow keys reach the other processes. */
  #rove(id) {
    for (const [name, { box }] of this.nodes) set(box, { tabindex: name === id ? 0 : -1 });
  }

  #picked(target) {
    const found = target.closest("[data-id], [data-link]");
    if (!found || !this.onPick) return;
    if (found.dataset.id) this.#rove(found.dataset.id);
    this.onPick(found.dataset.id ?? found.dataset.link, found);
  }

  #draw() {
    const room = this.frame.clientWidth;
    if (!room || !this.data) return;
    const { brokers, servers, clients, links } = this.data;
    this.width = Math.min(WIDTH_MAX, room);
    this.places = new Map();
    this.#place("broker", brokers, BROKER, 0.312, 128);
    this.#place("server", servers, SERVER, 0.312, 128);
    this.#place("client", clients, CLIENT, 0.235, 112);
    set(this.svg, { width: this.width, height: CLIENT.top + CLIENT.height + PAD });
    this.order = [...brokers, ...servers, ...clients].map(({ id }) => id);
    this.gone = new Set(brokers.filter(({ state }) => state !== "up").map(({ id }) => id));
    for (const id of this.nodes.keys()) {
      if (!this.order.includes(id)) this.#remove(this.nodes, id);
    }
    brokers.forEach((broker) => this.#broker(broker));
    servers.forEach((server) => this.#server(server));
    clients.forEach((client) => this.#client(client));
    if (this.onPick && !this.order.some((id) => this.nodes.get(id).box.getAttribute("tabindex") === "0")) {
      this.#rove(this.order[0]);
    }
    this.#drawLinks(links);
    this.#drawAround();
  }

  #drawAround() {
    const { around = null, isForeign = false } = this.data;
    const { above, below, beside } = AROUND;
    const name = around ?? "";
    set(this.around, {
      class: `cl-around${isForeign ? " cl-foreign" : ""}`, display: name ? null : "none",
      x: -beside, y: SERVER.top - above, width: this.width + 2 * beside, height: SERVER.height + above + below,
    });
    const wide = name.length * LETTER + 8;
    const [ground, text] = this.aroundName.childNodes;
    set(this.aroundName, { transform: `translate(${this.width / 2} ${SERVER.top + SERVER.height + 2})`, display: name ? null : "none" });
    set(ground, { x: -wide / 2, width: wide });
    write(text, name);
  }

  #remove(map, id) {
    map.get(id).box.remove();
    map.delete(id);
  }

  #place(kind, row, { top, height }, share, most) {
    const width = Math.round(Math.min(most, this.width * share));
    const gap = row.length > 1 ? (this.width - 2 * PAD - width * row.length) / (row.length - 1) : 0;
    row.forEach(({ id }, index) => {
      const left = PAD + index * (width + gap);
      this.places.set(id, { kind, index, count: row.length, left, top, width, height, middle: left + width / 2 });
    });
  }

  #node(id, kind) {
    if (!this.nodes.has(id)) {
      const parts = {
        frame: svg("rect", { class: "cl-frame", rx: kind === "client" ? 12 : 6 }),
        mark: mark(kind === "client" ? "answer" : "server", "unknown"),
        name: svg("text", { class: "cl-name" }),
        word: svg("text", { class: "cl-word" }),
        age: svg("text", { class: "cl-age" }),
        chips: svg("g"),
      };
      const box = svg("g", { class: `cl-node cl-${kind}`, "data-id": id, "data-kind": kind, tabindex: this.onPick ? -1 : null,
        role: this.onPick ? "button" : "img" }, ...Object.values(parts));
      this.boxes.append(box);
      this.nodes.set(id, { box, ...parts });
    }
    const node = this.nodes.get(id);
    const { left, top, width, height } = this.places.get(id);
    set(node.box, { transform: `translate(${Math.round(left)} ${top})` });
    set(node.frame, { width, height });
    return { ...node, width };
  }

  #broker({ id, name, state, note }) {
    const node = this.#node(id, "broker");
    const { word, css } = sign("server", state);
    showMark(node.mark, "server", state);
    this.#title(node, name, note ?? word, css);
    set(node.box, { "aria-label": `${name}: ${note ?? word}`, "data-state": state });
  }

  #server({ id, name, state, lists, note, isOld = false }) {
    const node = this.#node(id, "server");
    const { word, css } = sign("server", state);
    showMark(node.mark, "server", state);
    this.#title(node, name, note ?? word, css);
    this.#chips(node, lists, 45, isOld);
    set(node.box, { "aria-label": `${name}: ${note ?? word}; ${this.#listed(lists, "its table lists")}`, "data-state": state,
      "data-lists": lists ? lists.join(" ") : null });
  }

  /** Write the name and the state beside the mark. A narrow box gets a smaller mark and less space. */
  #title(node, name, word, css) {
    const isNarrow = node.width < NARROW;
    const [at, x] = isNarrow ? [8, 17] : node.width < 90 ? [11, 21] : [15, 29];
    node.box.classList.toggle("cl-narrow", isNarrow);
    set(node.mark, { transform: `translate(${at} 15)${isNarrow ? " scale(.75)" : ""}` });
    set(write(node.name, name), { x, y: 19 });
    set(write(node.word, word), { x, y: 35, class: `cl-word ${css}` });
  }

  #client({ id, name, answer, age, lists, why = "" }) {
    const node = this.#node(id, "client");
    const { word, css } = sign("answer", answer);
    const old = age === null ? "" : duration(age);
    const middle = node.width / 2;
    node.box.classList.toggle("cl-narrow", node.width < 62);
    showMark(node.mark, "answer", answer);
    set(node.mark, { transform: `translate(${middle} 28)` });
    set(write(node.name, name), { x: middle, y: 14, "text-anchor": "middle" });
    set(write(node.word, word), { x: middle, y: 51, "text-anchor": "middle", class: `cl-word ${css}` });
    set(write(node.age, old), { x: middle, y: 64, "text-anchor": "middle" });
    this.#chips(node, lists, 69, false);
    set(node.box, { "aria-label": `${name}: ${word}${why && `, ${why}`}${old && `, ${old} ago`}; ${this.#listed(lists, "it knows")}`,
      "data-state": answer ?? "unknown", "data-lists": lists ? lists.join(" ") : null });
  }

  #listed(lists, verb) {
    if (lists === null) return "its table is not known";
    const names = this.data.brokers.filter(({ id }) => lists.includes(id)).map(({ name }) => name);
    return names.length ? `${verb} ${names.join(", ")}` : `${verb} no broker`;
  }

  /** Draw one numbered square for each broker: filled if it is listed, crossed out if it is listed but gone. */
  #chips(node, lists, y, faint) {
    const { brokers } = this.data;
    const most = (node.width - 6) / brokers.length;
    const gap = Math.min(6, most * 0.12);
    const wide = Math.min(CHIP, most - gap);
    const begin = (node.width - brokers.length * wide - (brokers.length - 1) * gap) / 2;
    while (node.chips.childElementCount > brokers.length) node.chips.lastChild.remove();
    while (node.chips.childElementCount < brokers.length) {
      node.chips.append(svg("g", {}, svg("rect", { height: CHIP, rx: 3 }), svg("text", { y: 13 }), svg("path", { class: "cl-strike" })));
    }
    brokers.forEach(({ id }, index) => {
      const chip = node.chips.childNodes[index];
      const listed = lists?.includes(id) ?? false;
      const gone = this.gone.has(id);
      const kind = lists === null ? "unknown" : listed ? (gone ? "ghost" : "listed") : gone ? "absent" : "missing";
      set(chip, { class: `cl-chip cl-${kind}${faint ? " cl-faint" : ""}`, transform: `translate(${begin + index * (wide + gap)} ${y})` });
      set(chip.childNodes[0], { width: wide });
      set(chip.childNodes[2], { d: `M2 ${CHIP - 2}L${wide - 2} 2` });
      write(set(chip.childNodes[1], { x: wide / 2 }), /\d+$/.exec(id)?.[0] ?? String(index));
    });
  }

  #drawLinks(links) {
    const used = new Set();
    for (const link of links) {
      const [from, to] = [this.places.get(link.from), this.places.get(link.to)];
      if (!from || !to) continue;
      // A client has a link to every broker, across the whole drawing. So draw only those links that are slow or cut.
      const isFar = from.kind === "client" && to.kind === "broker";
      if (isFar && link.state !== "cut" && link.state !== "slow") continue;
      const id = `${link.from}>${link.to}`;
      used.add(id);
      this.#link(id, link, from, to, isFar);
    }
    for (const id of this.links.keys()) {
      if (!used.has(id)) this.#remove(this.links, id);
    }
  }

  #link(id, { state, way = "both" }, from, to, isFar) {
    if (!this.links.has(id)) {
      const parts = { reach: svg("path", { class: "cl-reach" }), wire: svg("path", { class: "cl-wire", pathLength: 100 }),
        sign: svg("path", { class: "cl-sign" }) };
      const box = svg("g", { "data-link": id }, ...Object.values(parts));
      this.wires.append(box);
      this.links.set(id, { box, ...parts });
    }
    const link = this.links.get(id);
    const { d, x, y, angle, gap } = route(from, to);
    set(link.box, { class: `cl-link cl-${state}${isFar ? " cl-far" : ""}`, "data-state": state, "data-way": state === "cut" ? way : null });
    set(link.reach, { d });
    set(link.wire, { d, "stroke-dasharray": state === "cut" && way === "both" && !isFar ? gap : null });
    set(link.sign, { d: SIGNS[state === "cut" ? way : state] ?? "M0 0", transform: `translate(${x} ${y}) rotate(${angle})` });
  }
}

/** Signs on a link, drawn for a link that leads to the right. */
const SIGNS = {
  both: "M-5-6V6M5-6V6",
  forth: "M4-6V6M-2-5-8 0-2 5",
  back: "M-4-6V6M2-5 8 0 2 5",
  slow: "M-5 0A5 5 0 1 1 5 0 5 5 0 1 1-5 0M0-3V0L2 2",
};

/** Return the path of a link, and the place and direction of its sign. */
function route(from, to) {
  if (from.top === to.top) return beside(from, to);
  const down = from.top < to.top;
  const port = (here, there) => here.middle + (there.index - (there.count - 1) / 2) * here.width * (here.kind === "client" ? 0.12 : 0.24);
  const x1 = port(from, to);
  const x2 = port(to, from);
  const y1 = down ? from.top + from.height : from.top;
  const y2 = down ? to.top : to.top + to.height;
  // Links cross in the middle, where their signs would cover each other. So put each sign nearer to one end of its link.
  const part = (from.index + to.index) % 2 ? 0.3 : 0.7;
  return {
    d: `M${Math.round(x1)} ${y1}L${Math.round(x2)} ${y2}`,
    x: Math.round(x1 + (x2 - x1) * part), y: Math.round(y1 + (y2 - y1) * part),
    angle: Math.round(Math.atan2(y2 - y1, x2 - x1) * 180 / Math.PI),
    gap: `${Math.round(100 * part) - 6} 12 100`,
  };
}

/** Return the path between two processes of one row: a straight line to a neighbour, otherwise a curve above the row. */
function beside(from, to) {
  const right = from.left < to.left;
  const [a, b] = right ? [from, to] : [to, from];
  const angle = right ? 0 : 180;
  if (b.index - a.index === 1) {
    const y = a.top + a.height / 2;
    const [x1, x2] = [Math.round(a.left + a.width), Math.round(b.left)];
    return { d: right ? `M${x1} ${y}H${x2}` : `M${x2} ${y}H${x1}`, x: (x1 + x2) / 2, y, angle, gap: "35 30 35" };
  }
  const y = a.top;
  const [x1, x2] = [Math.round(a.left + a.width - 12), Math.round(b.left + 12)];
  const ends = right ? [x1, x2] : [x2, x1];
  return { d: `M${ends[0]} ${y}C${ends[0]} ${y - 22} ${ends[1]} ${y - 22} ${ends[1]} ${y}`, x: (x1 + x2) / 2, y: y - 16, angle, gap: "44 12 44" };
}
