/** The form and the menu with which people cause faults. The menu opens beside a process or a link in a drawing. */

import { html, set, write } from "/drawings/svg.js";
import { DESIGNS, named } from "./words.js";

const SERVERS = [0, 1, 2].map((n) => `nameserver-${n}`);
const BROKERS = [0, 1, 2].map((n) => `broker-${n}`);
const CLIENTS = [0, 1, 2, 3].map((n) => `client-${n}`);
const DELAYS = [[200, "0.2 s"], [1000, "1 s"], [3000, "3 s"]];

/** Buttons for a process: each has a command, the button's text, and an explanation for new users. */
const OF_PROCESS = {
  server: [
    ["kill", "Kill", "The process ends at once (kill -9). The system closes its connections."],
    ["pause", "Pause", "The process stops, and its connections stay open. Nothing answers."],
    ["restart-empty", "Restart empty", "The process is killed, loses its disk, and starts again."],
    ["part", "Part the network", "This server, client 0 and broker 0 are cut off from all others."],
  ],
  broker: [
    ["stop", "Stop kindly", "The broker unregisters at the servers, then ends."],
    ["kill", "Kill", "The process ends at once (kill -9). The system closes its connections."],
    ["pause", "Pause", "The broker sends nothing more, heartbeats included. Its connections stay open."],
  ],
};

export class Faults {
  /**
   * @param {object} parts
   * @param {HTMLElement} parts.host Element that contains the form.
   * @param {HTMLElement} parts.menu Menu that opens beside a process or a link of a drawing.
   * @param {(order: object) => Promise<object | null>} parts.order Sends a command; returns null if it was refused.
   * @param {() => object | null} parts.present Returns the present state of all designs.
   */
  constructor({ host, menu, order, present }) {
    Object.assign(this, { host, menu, order, present, origin: null });
    this.where = html("div", { class: "row" });
    this.form = html("div", { class: "forms" },
      group("In", this.where),
      this.#processes("server", "Server", ["leader", ...SERVERS]),
      this.#processes("broker", "Broker", BROKERS),
      this.#cable(),
      this.#topic(),
      this.#repair());
    host.append(html("h2", { id: "faults-title" }, "Break it"), this.form);
    this.form.append(meaning());
    this.#close(false);
    menu.addEventListener("keydown", (event) => this.#key(event));
    for (const place of [menu, this.form]) {
      for (const kind of ["pointerover", "focusin"]) place.addEventListener(kind, (event) => tellMeaning(place, event.target));
    }
    document.addEventListener("pointerdown", (event) => {
      if (!menu.contains(event.target)) this.#close(false);
    });
  }

  /** Offer the designs that `state` has; disable all buttons if the page shows the past or a saved session. */
  show(state, isPast) {
    const names = state.designs.map(({ name }) => name).join(" ");
    if (this.names !== names) {
      this.names = names;
      this.where.replaceChildren(radio("where", "", "all designs", true),
        ...state.designs.map(({ name }) => radio("where", name, DESIGNS[name].name, false)));
    }
    const isOff = isPast || state.replayed;
    for (const button of this.form.querySelectorAll("button")) button.disabled = isOff;
    if (isOff) this.#close(false);
  }

  /** Open the menu for a process or a link of a design, beside the element that draws it. */
  open(design, id, element) {
    const state = this.present();
    if (!state || state.replayed || document.body.classList.contains("past")) return;
    const found = state.designs.find(({ name }) => name === design);
    const [title, entries] = id.includes(">") ? this.#ofLink(id) : this.#ofNode(found, id);
    const everywhere = html("input", { type: "checkbox", id: "everywhere" });
    const buttons = entries.map(([order, text, meaning]) => this.#button(order.do, text, meaning, () => {
      const designs = everywhere.checked ? [] : [design];
      this.#close(true);
      this.order({ ...order, designs });
    }));
    this.origin = element;
    this.menu.replaceChildren(html("h2", { id: "menu-title" }, `${title} of ${DESIGNS[design].name}`),
      html("label", {}, everywhere, " in all designs"), ...buttons, meaning());
    set(this.menu, { hidden: false, role: "dialog", "aria-labelledby": "menu-title" });
    this.#beside(element);
    (buttons[0] ?? everywhere).focus();
  }

  #beside(element) {
    const place = element.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.menu;
    const left = Math.max(8, Math.min(place.left, document.documentElement.clientWidth - width - 8));
    const below = place.bottom + height + 8 < window.innerHeight || place.top < height;
    this.menu.style.left = `${left + window.scrollX}px`;
    this.menu.style.top = `${(below ? place.bottom + 6 : place.top - height - 6) + window.scrollY}px`;
  }

  #close(isFocused) {
    if (this.menu.hidden) return;
    set(this.menu, { hidden: true });
    if (isFocused) this.origin?.focus();
  }

  #key(event) {
    if (event.key === "Escape") {
      event.preventDefault();
      this.#close(true);
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const all = [...this.menu.querySelectorAll("input, button")];
    const here = all.indexOf(document.activeElement);
    if (event.key === "Tab") {
      event.preventDefault();
      all.at((here + (event.shiftKey ? -1 : 1)) % all.length).focus();
    } else if (step) {
      event.preventDefault();
      all.at((here + step) % all.length).focus();
    }
  }

  #ofNode(design, id) {
    const kind = id.startsWith("nameserver") ? "server" : id.startsWith("broker") ? "broker" : "client";
    const title = named(id);
    const cuts = [
      [{ do: "cut", target: id }, "Cut off", `All links of ${title} are cut, both ways.`],
      [{ do: "slow", target: id, delay_ms: 1000 }, "Slow down", `All links of ${title} take 1 s longer, both ways.`],
    ];
    if (kind === "client") {
      const moves = SERVERS.map((server) => [{ do: "reconnect", target: id, to: server }, `Go to ${named(server)}`,
        `${title} connects anew and asks ${named(server)} first, as a client that starts may.`]);
      return [title, [...moves, ...cuts]];
    }
    const { life } = [...design.servers, ...design.brokers].find(({ name }) => name === id);
    if (life === "down") return [title, [[{ do: "start", target: id }, "Start", "The process starts with the disk that it had."]]];
    const faults = OF_PROCESS[kind].map(([verb, text, meaning]) => [{ do: verb, target: id }, text, meaning]);
    if (life !== "paused") return [title, [...faults, ...cuts]];
    return [title, [[{ do: "resume", target: id }, "Let it go on", "The process goes on where it was paused."], ...faults.filter(([order]) => order.do === "kill")]];
  }

  #ofLink(id) {
    const [from, to] = id.split(">");
    const [a, b] = [named(from), named(to)];
    return [`link of ${a} and ${b}`, [
      [{ do: "cut", target: from, to }, "Cut both ways", "Nothing passes."],
      [{ do: "cut", target: from, to, oneway: true }, `Cut from ${a}`, `What ${a} sends does not reach ${b}.`],
      [{ do: "cut", target: to, to: from, oneway: true }, `Cut from ${b}`, `What ${b} sends does not reach ${a}.`],
      [{ do: "slow", target: from, to, delay_ms: 1000 }, "Slow down", "Everything takes 1 s longer, both ways."],
      [{ do: "heal" }, "Heal all links", "All cuts and delays end, and paused processes go on."],
    ]];
  }

  #processes(kind, title, names) {
    const target = select(`${kind}-target`, title, names.map((name) => [name, name === "leader" ? "the leader" : named(name)]));
    return group(title, html("div", { class: "row" }, target, ...OF_PROCESS[kind].map(([verb, text, meaning]) =>
      this.#button(verb, text, meaning, () => this.#send({ do: verb, target: target.value }), kind))));
  }

  #cable() {
    const all = [...SERVERS, ...BROKERS, ...CLIENTS].map((name) => [name, named(name)]);
    const from = select("cable-from", "From", all);
    const to = select("cable-to", "To", [["", "all others"], ...all]);
    const oneway = html("input", { type: "checkbox", id: "cable-oneway" });
    const delay = select("cable-delay", "Delay", DELAYS);
    const link = () => ({ target: from.value, to: to.value, oneway: oneway.checked });
    return group("Cable",
      html("div", { class: "row" }, html("label", {}, "from ", from), html("label", {}, "to ", to), html("label", {}, oneway, " one way")),
      html("div", { class: "row" },
        this.#button("cut", "Cut", "Nothing that is sent arrives. Connections stay open.", () => this.#send({ do: "cut", ...link() }), "cable"),
        this.#button("slow", "Slow", "Everything arrives later.", () => this.#send({ do: "slow", ...link(), delay_ms: Number(delay.value) }), "cable"),
        html("label", {}, "by ", delay)));
  }

  #topic() {
    const name = html("input", { id: "topic", value: "Orders-1", maxlength: 32, size: 10, pattern: "[A-Za-z0-9_\\-]+", autocomplete: "off" });
    return group("Topic", html("div", { class: "row" }, html("label", {}, "named ", name),
      this.#button("make-topic", "Make", "Every broker gets the topic. Clients ask for the newest topic.", () => {
        this.#send({ do: "make-topic", topic: name.value });
        // Raise the number in the topic's name, so that the next click makes another topic.
        name.value = name.value.replace(/(\d*)$/, (digits) => String(Number(digits || 0) + 1));
      }, "topic")));
  }

  #repair() {
    return group("Repair", html("div", { class: "row" },
      this.#button("repair", "Repair everything", "All cuts and delays end, paused processes go on, and what is down starts.",
        async () => {
          await this.#send({ do: "heal" });
          this.#startAll();
        }, "repair"),
      this.#button("heal", "Heal links", "All cuts and delays end, and paused processes go on.", () => this.#send({ do: "heal" }), "repair"),
      this.#button("start", "Start what is down", "Servers and brokers that are down start with the disk that they had.", () => this.#startAll(), "repair")));
  }

  #startAll() {
    const { value } = this.form.querySelector("[name=where]:checked");
    for (const order of starts(this.present(), value ? [value] : [])) this.order(order);
  }

  #send(order) {
    const { value } = this.form.querySelector("[name=where]:checked");
    return this.order({ ...order, designs: value ? [value] : [] });
  }

  #button(verb, text, meaning, act, of = "menu") {
    const button = html("button", { type: "button", "data-do": verb, "data-of": of, title: meaning }, text);
    button.addEventListener("click", act);
    return button;
  }
}

/** Return the commands that start all processes that are down. One command starts a process in several designs. */
export function starts(state, designs = []) {
  const down = new Map();
  for (const design of state.designs) {
    if (designs.length && !designs.includes(design.name)) continue;
    for (const { name, life } of [...design.servers, ...design.brokers]) {
      if (life === "down") down.set(name, [...(down.get(name) ?? []), design.name]);
    }
  }
  return [...down].map(([target, names]) => ({ do: "start", target, designs: names }));
}

/** Return the element that shows a button's explanation. Screen readers read the explanation from the button's title. */
function meaning() {
  return html("p", { class: "meaning", "aria-hidden": "true" });
}

/** Show the explanation of the button that has the pointer or the focus. */
function tellMeaning(place, target) {
  write(place.querySelector(".meaning"), target.closest("button")?.title ?? "");
}

function group(title, ...rows) {
  return html("fieldset", {}, html("legend", {}, title), ...rows);
}

function radio(name, value, text, checked) {
  return html("label", {}, html("input", { type: "radio", name, value, checked }), ` ${text}`);
}

function select(id, label, options) {
  return html("select", { id, "aria-label": label }, ...options.map(([value, text]) => html("option", { value }, text)));
}
