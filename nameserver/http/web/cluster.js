// The part "Cluster": all brokers (rows) at all nameservers (columns).

import { element, isInUse, patchList, setAttribute, setText } from "/dom.js";
import { CELLS, brokerLink, count, duration, mark, nameserverSign, roleOf, setMark, stateWords, thousands } from "/words.js";

const ROWS = 300; // rows shown before the user asks for more, and rows that each click on the button adds
const FIRST_ROWS = 40; // rows drawn first, to show them early; the other rows follow

// Return sentences that describe the state of the cluster.
export function verdict(picture) {
  const others = picture.nameservers.filter((each) => each.state !== "this");
  const quiet = others.filter((each) => each.state === "silent" || each.state === "refused");
  const [here] = picture.nameservers;
  const sentences = [];
  if (!here.ready) sentences.push(`This nameserver is not ready: ${here.waiting_for || "no leader"}.`);
  if (quiet.length > 0) {
    sentences.push(`${quiet.map((each) => each.name).join(", ")} ${quiet.length === 1 ? "does" : "do"} not answer.`);
  }
  const rows = picture.rows.length;
  if (rows === 0) {
    sentences.push("No broker is registered.");
  } else if (picture.differing > 0) {
    sentences.push(`${picture.differing} of ${count(rows, "broker")} ${picture.differing === 1 ? "is" : "are"} not the same at all nameservers.`);
  } else if (picture.nameservers.filter((each) => each.knows !== "nothing").length > 1) {
    sentences.push(`All nameservers that answer list the same ${count(rows, "broker")}.`);
  } else {
    sentences.push(`${count(rows, "broker")} ${rows === 1 ? "is" : "are"} registered.`);
  }
  const critical = picture.nameservers.filter((each) => each.stops_group);
  if (critical.length > 0) {
    sentences.push(picture.nameservers.length === 1 ? "The group has one member and stops without it."
      : `The group stops if it loses ${critical.length === 1 ? critical.map((each) => each.name)[0] : `one of ${critical.map((each) => each.name).join(", ")}`}.`);
  }
  return sentences;
}

export function isBad(picture) {
  return picture.differing > 0 || !picture.nameservers[0].ready
    || picture.nameservers.some((each) => each.state === "silent" || each.state === "refused");
}

// Return the known facts about a nameserver, as pairs of a name and a value.
function facts(each, pulse) {
  const found = [];
  const put = (name, value) => {
    if (value !== null && value !== undefined && value !== "") found.push([name, value]);
  };
  if (each.role !== "independent") {
    put("role", each.votes === false && each.role !== "learner" ? `${each.role ?? "unknown"}, no vote` : each.role);
    put("term", each.term);
    if (each.linked !== null && each.role === null) put("link", each.linked ? "up" : "down");
    put("behind", pulse?.lag === null || pulse?.lag === undefined ? null : pulse.lag === 0 ? "no entry" : count(pulse.lag, "entry", "entries"));
    put("contact", pulse?.last_contact_ms === null || pulse?.last_contact_ms === undefined ? null
      : pulse.last_contact_ms < 1000 ? "now" : `${duration(Math.floor(pulse.last_contact_ms / 1000))} ago`);
  }
  put("brokers", each.brokers);
  put("topics", each.topics === null || each.topics === undefined ? null : thousands(each.topics));
  put("table", each.same_table === null || each.state === "this" ? null : each.same_table ? "as here" : "differs from here");
  put("named by", each.named_by > 0 ? count(each.named_by, "broker") : null);
  put("asked at", each.asked_at === each.name ? "" : each.asked_at);
  return found;
}

function makeCard() {
  return element("li", { class: "card" },
    element("h2", {}, mark("unknown"), element("span", { class: "name" })),
    element("p", { class: "state" }),
    element("dl"),
    element("p", { class: "warning" }, mark("lost"), element("span", {}, "The group stops if this member is lost.")));
}

function updateCard(card, each, pulse) {
  const [head, state, list, warning] = card.children;
  setMark(head.firstElementChild, nameserverSign(each));
  setText(head.lastElementChild, each.name);
  const words = each.ready === false ? `not ready: ${each.waiting_for}` : each.reason || "";
  setText(state, [stateWords(each), words].filter(Boolean).join(": "));
  setAttribute(card, "data-state", each.state);
  patchList(list, facts(each, pulse), ([name]) => name,
    ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
    (row, [, value]) => setText(row.lastElementChild, value));
  warning.hidden = !each.stops_group;
}

// Templates of a row and a cell. Copying a template takes half the time of creating its elements.
const ROW = element("tr", {}, element("th", { scope: "row" }, element("a"), element("span", { class: "note" })));
const CELL = element("td", { class: "cell" }, mark("good"), element("span", { class: "words" }), element("span", { class: "age" }));
const makeRow = () => ROW.cloneNode(true);

function updateCell(node, cell, seen, nameserver) {
  const { words, sign } = CELLS[cell.state ?? "listed"];
  setMark(node.children[0], sign);
  const state = cell.state ?? "listed";
  setAttribute(node, "data-state", state);
  const why = cell.differs?.length ? `${words}: ${cell.differs.join(", ")}` : words;
  setText(node.children[1], why);
  const text = seen !== undefined && seen >= 0 && state !== "unknown" && state !== "missing" ? duration(seen) : "";
  setText(node.children[2], text);
  node.children[1].classList.toggle("quiet", state === "listed" && text !== ""); // for a listed broker, the sign and the age are enough
  setAttribute(node, "title", `${nameserver.name}: ${why}${text ? `, last heartbeat ${text} ago` : ""}`);
}

function updateRow(node, row, index, picture, pulse) {
  const [link, note] = node.firstElementChild.children;
  setText(link, row.broker_name);
  setAttribute(link, "href", brokerLink(row));
  setText(note, [roleOf(row.broker_id), row.broker_addr, row.topics === null ? null : count(row.topics, "topic")].filter(Boolean).join(", "));
  node.classList.toggle("differs", row.differs);
  while (node.children.length > picture.nameservers.length + 1) node.lastElementChild.remove();
  while (node.children.length < picture.nameservers.length + 1) node.append(CELL.cloneNode(true));
  picture.nameservers.forEach((nameserver, column) => {
    updateCell(node.children[column + 1], row.cells[column], pulse?.nameservers[column]?.seen_s[index], nameserver);
  });
}

export function open() {
  const sentence = element("p", { class: "verdict" }, mark("unknown"), element("span", { role: "status" }, "asking"));
  const note = element("p", { class: "note" });
  const cards = element("ul", { class: "cards", "aria-label": "Nameservers" });
  const filter = element("input", { type: "search", autocomplete: "off", id: "broker-filter" });
  const only = element("input", { type: "checkbox", id: "only-differing" });
  const cluster = element("select", { id: "broker-cluster" }, element("option", { value: "" }, "all clusters"));
  const found = element("p", { class: "note found" });
  const waits = element("button", { type: "button", class: "waits", hidden: true });
  const head = element("tr", {}, element("th", { scope: "col" }, "Broker"));
  const body = element("tbody");
  const table = element("table", { class: "matrix" },
    element("caption", { class: "hidden-words" }, "Each broker at each nameserver, with the age of its last heartbeat there"),
    element("thead", {}, head), body);
  const more = element("button", { type: "button", hidden: true }, `Show ${ROWS} more`);
  const legend = element("ul", { class: "signs", "aria-label": "Signs" },
    ...Object.values(CELLS).map(({ words, sign }) => element("li", {}, mark(sign), words)));
  const root = element("section", { class: "part" },
    element("h1", { tabindex: "-1" }, "Cluster"), sentence, note, cards,
    element("div", { class: "filters" },
      element("label", { for: "broker-filter" }, "Broker ", filter),
      element("label", { for: "broker-cluster" }, "Cluster ", cluster),
      element("label", { for: "only-differing" }, only, " only those that differ")),
    element("div", { class: "line" }, found, waits),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Brokers by nameserver" }, table),
    more, legend);
  let now = null;
  let rows = FIRST_ROWS;

  function matches(row) {
    const part = filter.value.trim().toLowerCase();
    return (part === "" || row.broker_name.toLowerCase().includes(part) || row.broker_addr.toLowerCase().includes(part))
      && (cluster.value === "" || row.cluster === cluster.value) && (!only.checked || row.differs);
  }

  function draw(hold) {
    const { picture, pulse } = now;
    const ages = pulse?.tag === picture.tag ? pulse : null;
    const sentences = verdict(picture);
    setMark(sentence.firstElementChild, picture.rows.length === 0 ? "unknown" : isBad(picture) ? "bad" : "good");
    setText(sentence.lastElementChild, sentences.join(" "));
    setText(note, [picture.note, picture.more_brokers > 0 ? `${count(picture.more_brokers, "broker")} more are not compared.` : ""].filter(Boolean).join(" "));
    const columns = picture.nameservers.map((each, index) => ({ each, pulse: ages?.nameservers[index] }));
    patchList(cards, columns, ({ each }) => each.name, makeCard, (card, { each, pulse: figures }) => updateCard(card, each, figures));
    patchList(head, [{ name: "" }, ...picture.nameservers], (each) => each.name,
      () => element("th", { scope: "col" }), (cell, each) => setText(cell, each.name === "" ? "Broker" : each.name));
    const clusters = [...new Set(picture.rows.map((row) => row.cluster))].sort();
    patchList(cluster, ["", ...clusters], (name) => name, (name) => element("option", { value: name }), (option, name) => setText(option, name || "all clusters"));
    const indexed = picture.rows.map((row, index) => ({ row, index })).filter(({ row }) => matches(row));
    const shown = indexed.slice(0, rows);
    const waiting = patchList(body, shown, ({ row }) => `${row.cluster}/${row.broker_addr}`, makeRow,
      (node, { row, index }) => updateRow(node, row, index, picture, ages), hold);
    waits.hidden = waiting === 0;
    setText(waits, `Show ${count(waiting, "change")} of the list`);
    setText(found, indexed.length === picture.rows.length ? count(indexed.length, "broker") : `${count(indexed.length, "broker")} of ${picture.rows.length}`);
    more.hidden = indexed.length <= Math.max(rows, ROWS);
    if (rows === FIRST_ROWS) {
      rows = ROWS;
      if (indexed.length > FIRST_ROWS) requestAnimationFrame(() => setTimeout(redraw)); // draw the other rows after the first paint
    }
  }

  function redraw() {
    if (now !== null) draw(false);
  }
  filter.addEventListener("input", redraw);
  cluster.addEventListener("change", redraw);
  only.addEventListener("change", redraw);
  waits.addEventListener("click", redraw);
  more.addEventListener("click", () => {
    rows += ROWS;
    redraw();
  });
  return {
    title: "Cluster",
    root,
    show(known) {
      now = known;
      draw(body.children.length > 0 && isInUse(body));
    },
  };
}
