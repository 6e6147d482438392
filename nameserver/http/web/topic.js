// The part of the page about one topic at all nameservers, side by side: its queues at each broker, its order
// configuration, and the reasons if it has no route.

import { element, patchList, setAttribute, setText, svg } from "/dom.js";
import { AGAIN_MS, paced, read } from "/server.js";
import { address } from "/topics.js";
import { clock, count, mark, nameserverSign, setMark, stateWords } from "/words.js";

const CHANGED_MS = 1000;
const QUEUES_MAX = 32; // largest number of queues that are drawn as squares
const SQUARE = 10;

// Return a drawing with a square for each queue. The upper half is filled if clients may read the queue, the lower half
// if they may write it. Return null if there are too many queues.
function drawing(queues) {
  const both = Math.max(queues.readQueueNums, queues.writeQueueNums);
  if (both > QUEUES_MAX) return null;
  const across = Math.min(8, Math.max(both, 1));
  const width = across * SQUARE;
  const height = Math.ceil(Math.max(both, 1) / across) * SQUARE;
  const squares = Array.from({ length: both }, (_, index) => {
    const reads = index < queues.readQueueNums && (queues.perm & 4) !== 0;
    const writes = index < queues.writeQueueNums && (queues.perm & 2) !== 0;
    const x = (index % across) * SQUARE + 1;
    const y = Math.floor(index / across) * SQUARE + 1;
    return svg("g", {},
      svg("rect", { x, y, width: SQUARE - 2, height: SQUARE - 2, class: "queue" }),
      reads ? svg("rect", { x, y, width: SQUARE - 2, height: (SQUARE - 2) / 2, class: "reads" }) : null,
      writes ? svg("rect", { x, y: y + (SQUARE - 2) / 2, width: SQUARE - 2, height: (SQUARE - 2) / 2, class: "writes" }) : null);
  });
  return svg("svg", { class: "queues", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, ...squares);
}

const allowed = (perm) => [perm & 4 ? "read" : "", perm & 2 ? "write" : ""].filter(Boolean).join(" and ") || "neither read nor write";

function words(queues) {
  return queues.readQueueNums === queues.writeQueueNums
    ? `${count(queues.readQueueNums, "queue")}, ${allowed(queues.perm)}`
    : `${queues.readQueueNums} to read, ${queues.writeQueueNums} to write, ${allowed(queues.perm)}`;
}

function addressesOf(at, broker) {
  const addrs = (at.own?.route?.brokerDatas ?? []).find((each) => each.brokerName === broker)?.brokerAddrs ?? {};
  return Object.entries(addrs).sort().map(([id, addr]) => `${id === "0" ? "master" : `slave ${id}`} ${addr}`).join(", ");
}

function explanation(at) {
  if (at.own === null) return [at.reason || stateWords(at)];
  return [at.own.summary, ...at.own.likely_causes];
}

// Group the nameservers whose explanations are equal, so that each explanation is shown once.
function groups(picture) {
  const found = new Map();
  for (const at of picture.nameservers) {
    const texts = explanation(at);
    const key = texts.join("\n");
    if (!found.has(key)) found.set(key, { texts, names: [], listed: at.own?.listed ?? null });
    found.get(key).names.push(at.name);
  }
  return [...found.values()];
}

export function open([name]) {
  const heading = element("h1", { tabindex: "-1" }, name);
  const sentence = element("p", { class: "verdict" }, mark("unknown"), element("span", { role: "status" }, "asking"));
  const head = element("tr");
  const body = element("tbody");
  const reasons = element("div", { class: "reasons" });
  const events = element("tbody", { role: "rowgroup" });
  const eventsPart = element("section", {}, element("h2", {}, "Changes"),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Changes of this topic" },
      element("table", { class: "events", role: "table" }, element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...["When", "Change", "By", "Nameserver"].map((each) => element("th", { scope: "col", role: "columnheader" }, each)))), events)),
    element("p", { class: "note" }, "A nameserver remembers a bounded number of changes, since its start."));
  const root = element("section", { class: "part" },
    element("p", { class: "back" }, element("a", { href: address }, address === "#/topics" ? "All topics" : "Topics found")), heading, sentence,
    element("h2", {}, "Route"),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Route by nameserver" },
      element("table", { class: "sides" }, element("caption", { class: "hidden-words" }, "Queues of each broker at each nameserver"), element("thead", {}, head), body)),
    element("section", {}, element("h2", {}, "Explanation"), reasons), eventsPart);

  function lines(picture) {
    const brokers = new Set();
    for (const at of picture.nameservers) for (const queues of at.own?.route?.queueDatas ?? []) brokers.add(queues.brokerName);
    return [...[...brokers].sort().map((broker) => ({ key: `b ${broker}`, name: broker, broker })), { key: "order", name: "order configuration" }];
  }

  function updateCell(node, line, at, here) {
    let state = "";
    let text = "";
    let sign = "good";
    let where = "";
    let picture = null;
    if (at.own === null) {
      text = at.reason || stateWords(at);
      sign = nameserverSign(at);
      state = "unknown";
    } else if (line.broker === undefined) {
      text = at.own.order_configuration ?? "none";
      const differs = here.own !== null && here.own.order_configuration !== at.own.order_configuration;
      sign = differs ? "differs" : null;
      state = differs ? "differs" : "";
    } else {
      const queues = (at.own.route?.queueDatas ?? []).find((each) => each.brokerName === line.broker);
      const right = (here.own?.route?.queueDatas ?? []).find((each) => each.brokerName === line.broker);
      if (queues === undefined) {
        text = "not listed";
        sign = "bad";
        state = "missing";
      } else {
        text = words(queues);
        where = addressesOf(at, line.broker);
        picture = queues;
        if (right !== undefined && (words(right) !== text || addressesOf(here, line.broker) !== where)) {
          sign = "differs";
          state = "differs";
        }
      }
    }
    setAttribute(node, "data-state", state || null);
    const key = `${sign} ${text} ${where} ${picture === null ? "" : JSON.stringify(picture)}`;
    if (node.dataset.shows === key) return;
    node.dataset.shows = key;
    node.replaceChildren(...[sign === null ? null : mark(sign), picture === null ? null : drawing(picture), element("span", { class: "words" }, text),
      where === "" ? null : element("span", { class: "addresses" }, where)].filter(Boolean));
  }

  function draw(picture) {
    const [here] = picture.nameservers;
    const answered = picture.nameservers.filter((at) => at.own !== null);
    const listing = answered.filter((at) => at.own.listed);
    const silent = picture.nameservers.length - answered.length;
    const where = picture.nameservers.length === 1 ? "" : listing.length === answered.length ? " at all nameservers that answer" : ` at ${listing.length} of ${picture.nameservers.length} nameservers`;
    const text = listing.length === 0 ? "It has no route." : `It has a route${where}.${picture.differs ? " The routes are not the same." : ""}`;
    setMark(sentence.firstElementChild, listing.length === 0 ? "bad" : picture.differs ? "differs" : silent > 0 ? "late" : "good");
    setText(sentence.lastElementChild, silent > 0 ? `${text} ${count(silent, "nameserver")} gave no answer.` : text);
    patchList(head, ["", ...picture.nameservers.map((at) => at.name)], (each) => each, () => element("th", { scope: "col" }), (cell, each) => setText(cell, each || "Broker"));
    patchList(body, lines(picture), (line) => line.key, (line) => element("tr", {}, element("th", { scope: "row" }, line.name)), (node, line) => {
      while (node.children.length > picture.nameservers.length + 1) node.lastElementChild.remove();
      while (node.children.length < picture.nameservers.length + 1) node.append(element("td", { class: "cell" }));
      picture.nameservers.forEach((at, column) => updateCell(node.children[column + 1], line, at, here));
    });
    patchList(reasons, groups(picture), (group) => group.texts.join("\n"), () => element("div", { class: "reason" }, element("h3"), element("ul")), (node, group) => {
      setText(node.firstElementChild, group.names.length === picture.nameservers.length && group.names.length > 1 ? "all nameservers" : group.names.join(", "));
      patchList(node.lastElementChild, group.texts, (each) => each, (each) => element("li", {}, each), () => {});
    });
    const changes = [];
    for (const at of answered) {
      for (const event of at.own.changes) changes.push({ at: event.until_ms, words: event.detail, by: event.by, name: at.name });
      for (const event of at.own.events) changes.push({ at: event.at_ms, words: [event.words, event.detail].filter(Boolean).join(": "), by: event.broker ?? "", name: at.name });
    }
    changes.sort((one, other) => other.at - one.at);
    eventsPart.hidden = changes.length === 0;
    patchList(events, changes, (each) => `${each.at} ${each.words} ${each.by} ${each.name}`,
      (each) => element("tr", { role: "row" }, ...[clock(each.at), each.words, each.by, each.name].map((text) => element("td", { role: "cell" }, text))), () => {});
  }

  let closed = false;
  const refresh = paced(async () => {
    try {
      const picture = await read(`/v1/console/topics/${encodeURIComponent(name)}`);
      if (!closed) draw(picture);
    } catch (error) {
      setText(sentence.lastElementChild, error.message);
      setMark(sentence.firstElementChild, "unknown");
      if (error.again && !closed) setTimeout(refresh, AGAIN_MS);
    }
  }, CHANGED_MS);
  let tag = "";
  refresh();
  return {
    title: name,
    root,
    watched: new URLSearchParams({ kinds: "topics,members,console", prefix: name }).toString(),
    show({ picture }) {
      if (tag !== "" && tag !== picture.tag) refresh();
      tag = picture.tag;
    },
    changed: refresh,
    close() {
      closed = true;
    },
  };
}
