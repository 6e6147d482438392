// The part of the page about one broker: its data at all nameservers, side by side.

import { element, patchList, setAttribute, setText } from "/dom.js";
import { CELLS, dateOf, duration, mark, roleOf, setMark, whole } from "/words.js";

const FIELDS = [
  ["data version", ({ data_version: { counter, timestamp, stateVersion } }) => `counter ${whole(counter)}, ${timestamp ? dateOf(timestamp) : "no time"}${stateVersion ? `, state version ${whole(stateVersion)}` : ""}`],
  ["number of topics", (copy) => copy.topics],
  ["broker name", (copy) => copy.broker_name],
  ["broker id", (copy) => whole(copy.broker_id)],
  ["HA address", (copy) => copy.ha_server_addr || "none"],
  ["lease", (copy) => duration(copy.lease_ms / 1000)],
];

export function open([cluster, addr]) {
  const heading = element("h1", { tabindex: "-1" }, addr);
  const note = element("p", { class: "note" }, `cluster ${cluster}`);
  const head = element("tr");
  const body = element("tbody");
  const root = element("section", { class: "part" },
    element("p", { class: "back" }, element("a", { href: "#/" }, "All brokers")), heading, note,
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "This broker by nameserver" },
      element("table", { class: "sides" }, element("caption", { class: "hidden-words" }, "This broker at each nameserver"), element("thead", {}, head), body)),
    element("p", { class: "note" }, "A copy is older if its data version is lower. Nameservers that are asked over the wire tell no versions and no heartbeats."));

  function valueOf(field, row, column, pulse, index) {
    const cell = row.cells[column];
    const state = cell.state ?? "listed";
    if (field === "state") return CELLS[state].words;
    if (field === "last heartbeat") {
      const seen = pulse?.nameservers[column]?.seen_s[index];
      return seen !== undefined && seen >= 0 && state !== "missing" ? `${duration(seen)} ago` : "";
    }
    if (state === "missing" || state === "unknown") return "";
    return cell.broker === undefined ? "" : FIELDS.find(([name]) => name === field)[1](cell.broker);
  }

  return {
    title: addr,
    root,
    show({ picture, pulse }) {
      const index = picture.rows.findIndex((row) => row.cluster === cluster && row.broker_addr === addr);
      if (index < 0) {
        setText(note, `No nameserver that answers lists ${addr} of cluster ${cluster} now.`);
        return;
      }
      const row = picture.rows[index];
      const ages = pulse?.tag === picture.tag ? pulse : null;
      setText(heading, row.broker_name);
      setText(note, `${roleOf(row.broker_id)}, ${addr}, cluster ${cluster}. ${row.differs ? "It is not the same at all nameservers." : "All nameservers that answer have the same copy."}`);
      patchList(head, [{ name: "" }, ...picture.nameservers], (each) => each.name, () => element("th", { scope: "col" }),
        (cell, each) => setText(cell, each.name === "" ? "Field" : each.name));
      const fields = ["state", "last heartbeat", ...(row.differs ? FIELDS.map(([name]) => name) : [])];
      patchList(body, fields, (name) => name, (name) => element("tr", {}, element("th", { scope: "row" }, name)), (line, name) => {
        while (line.children.length > picture.nameservers.length + 1) line.lastElementChild.remove();
        while (line.children.length < picture.nameservers.length + 1) {
          line.append(element("td", { class: "cell" }, mark("unknown"), element("span", { class: "words" })));
        }
        picture.nameservers.forEach((_, column) => {
          const cell = row.cells[column];
          const node = line.children[column + 1];
          const state = cell.state ?? "listed";
          const differs = (cell.differs ?? []).includes(name);
          node.firstElementChild.toggleAttribute("hidden", name !== "state" && !differs);
          setMark(node.firstElementChild, name === "state" ? CELLS[state].sign : "differs");
          setText(node.lastElementChild, valueOf(name, row, column, ages, index));
          setAttribute(node, "data-state", name === "state" ? state : differs ? "differs" : null);
        });
      });
    },
  };
}
