// The part "History": the last events of all nameservers, such as leader changes, evictions and refusals.

import { element, isInUse, patchList, setText } from "/dom.js";
import { Timeline } from "/drawings/timeline.js";
import { AGAIN_MS, paced, read } from "/server.js";
import { clock, count, mark, thousands } from "/words.js";

const CHANGED_MS = 1000;
const SHOWN_MS = 6 * 3600 * 1000; // longest time that the timeline shows; the table shows all events
const KINDS = {
  leader: { words: "leaders", one: "new leader", sign: "leader" },
  contact: { words: "contact", one: "contact", sign: "lost" },
  joined: { words: "brokers came", one: "broker came", sign: "came" },
  left: { words: "brokers left", one: "broker left", sign: "went" },
  refused: { words: "refusals", one: "refused", sign: "refused" },
  changed: { words: "changes", one: "changed", sign: "differs" },
};
// The name that the timeline uses for each kind of event.
const ON_TIMELINE = { leader: "leader", joined: "listed", left: "dropped", refused: "fault", changed: "change" };
const kindOf = (kind) => KINDS[kind] ?? { words: kind, one: kind, sign: "unknown" };
const onTimeline = ({ kind, detail }) => kind === "contact" ? (detail.endsWith("lost") ? "fault" : "heal") : ON_TIMELINE[kind] ?? "change";

const titleOf = ({ event, nameserver }) => [kindOf(event.kind).one, event.subject, event.detail, `at ${nameserver}`].filter(Boolean).join(", ");

// Return a lane for each member that was leader, with the times of its leadership.
function leaders(events, to) {
  const changes = events.filter(({ event }) => event.kind === "leader").map(({ event }) => event).sort((one, other) => one.at_ms - other.at_ms);
  const lanes = new Map();
  let current = null;
  for (const event of changes) {
    if (current?.name === event.subject) continue; // several nameservers report the same change
    if (current !== null) current.span.to = event.at_ms;
    current = { name: event.subject, span: { from: event.at_ms, to, state: "leader" } };
    if (!lanes.has(event.subject)) lanes.set(event.subject, []);
    lanes.get(event.subject).push(current.span);
  }
  return [...lanes.keys()].sort().map((name) => ({ id: name, name, family: "server", spans: lanes.get(name) }));
}

export function open() {
  const strip = element("div", { class: "strip" });
  const instant = element("p", { class: "note instant" }, "Now. Arrow keys or a click choose an instant; the table ends there.");
  const found = element("p", { class: "note found", role: "status" });
  const waits = element("button", { type: "button", class: "waits", hidden: true });
  const body = element("tbody", { role: "rowgroup" });
  const boxes = Object.entries(KINDS).map(([kind, { words, sign }]) => {
    const box = element("input", { type: "checkbox", id: `kind-${kind}`, checked: true });
    box.addEventListener("change", () => show(false));
    return [kind, box, element("label", { for: `kind-${kind}` }, box, mark(sign), ` ${words}`)];
  });
  let all = [];
  let until = null;
  const timeline = new Timeline(strip, {
    label: "Time of the history", step: 10000, instant: (at) => clock(at),
    onSeek(at) {
      until = at;
      setText(instant, at === null ? "Now. Arrow keys or a click choose an instant; the table ends there." : `Up to ${clock(at)}. End goes back to now.`);
      show(false);
    },
  });
  const root = element("section", { class: "part" },
    element("h1", { tabindex: "-1" }, "History"),
    element("p", { class: "note" }, "What nameservers remember since their start: of each kind the last 200 events."),
    element("fieldset", { class: "filters" }, element("legend", {}, "Show"), ...boxes.map(([, , label]) => label)),
    strip, instant,
    element("div", { class: "line" }, found, waits),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events" },
      element("table", { class: "events", role: "table" },
        element("caption", { class: "hidden-words" }, "Events, the newest first"),
        element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...["When", "Event", "About", "Detail", "By", "Nameserver"].map((each) => element("th", { scope: "col", role: "columnheader" }, each)))), body)));

  function draw(events) {
    const to = Date.now();
    const first = Math.min(to - 60000, ...events.map(({ event }) => event.at_ms));
    const from = Math.max(first - (to - first) / 50, to - SHOWN_MS);
    const lanes = leaders(all, to);
    const marks = events.filter(({ event }) => event.until_ms >= from).map((each) => ({ at: each.event.until_ms, kind: onTimeline(each.event), text: titleOf(each) }));
    marks.sort((one, other) => one.at - other.at);
    timeline.show({ from, to, groups: lanes.length ? [{ name: "Leader", lanes }] : [], events: marks });
  }

  function show(hold) {
    const wanted = new Set(boxes.filter(([, box]) => box.checked).map(([kind]) => kind));
    const chosen = all.filter(({ event }) => wanted.has(event.kind) || !(event.kind in KINDS));
    draw(chosen);
    const events = until === null ? chosen : chosen.filter(({ event }) => event.at_ms <= until);
    setText(found, events.length === 0 ? "Nothing has happened." : count(events.length, "event"));
    const waiting = patchList(body, events, ({ nameserver, event }) => `${nameserver} ${event.at_ms} ${event.kind} ${event.subject} ${event.detail} ${event.by}`,
      ({ event }) => {
        const line = element("tr", { role: "row" }, ...Array.from({ length: 6 }, () => element("td", { role: "cell" })));
        line.children[1].append(mark(kindOf(event.kind).sign), ` ${kindOf(event.kind).one}`);
        return line;
      },
      (line, { nameserver, event }) => {
        const cells = line.children;
        setText(cells[0], event.count > 1 ? `${clock(event.at_ms)} to ${clock(event.until_ms)}` : clock(event.at_ms));
        setText(cells[2], event.subject);
        setText(cells[3], event.count > 1 ? `${event.detail} (${thousands(event.count)} times)` : event.detail);
        setText(cells[4], event.by);
        setText(cells[5], nameserver);
      }, hold);
    waits.hidden = waiting === 0;
    setText(waits, `Show ${count(waiting, "change")} of the list`);
  }
  waits.addEventListener("click", () => show(false));

  const refresh = paced(async () => {
    try {
      all = (await read("/v1/console/history")).events;
      show(body.children.length > 0 && isInUse(body));
    } catch (error) {
      setText(found, error.message);
      if (error.again) setTimeout(refresh, AGAIN_MS);
    }
  }, CHANGED_MS);
  refresh();
  return { title: "History", root, show() {}, happened: refresh, changed: refresh, reopen: refresh };
}
