// The part "Topics" of the page: a search for topics by name. The server searches and sends the names page by page.

import { element, isInUse, patchList, setText } from "/dom.js";
import { AGAIN_MS, paced, read } from "/server.js";
import { count, thousands, topicLink } from "/words.js";

const PAGE = 100;
const PAGES_MAX = 20;
const SEARCH_MS = 150;
const CHANGED_MS = 1000;

// Address of the last search. The part about one topic has a link back to this address.
export let address = "#/topics";

export function open(_words, query) {
  const part = element("input", { type: "search", id: "topic-part", autocomplete: "off", spellcheck: "false" });
  const where = element("select", { id: "topic-where" },
    element("option", { value: "contains" }, "anywhere in the name"), element("option", { value: "prefix" }, "at the beginning"));
  const cluster = element("select", { id: "topic-cluster" }, element("option", { value: "" }, "all clusters"));
  const found = element("p", { class: "note found", role: "status" });
  const waits = element("button", { type: "button", class: "waits", hidden: true });
  const list = element("ul", { class: "topics" });
  const more = element("button", { type: "button", hidden: true }, `Show ${PAGE} more`);
  const form = element("form", { class: "filters", role: "search" },
    element("label", { for: "topic-part" }, "Topic ", part),
    element("label", { for: "topic-where" }, "Text stands ", where),
    element("label", { for: "topic-cluster" }, "Cluster ", cluster));
  const root = element("section", { class: "part" },
    element("h1", { tabindex: "-1" }, "Topics"), form, element("div", { class: "line" }, found, waits), list, more);
  let pages = 1;
  let names = [];
  let hasMore = false;
  let total = null;
  let asked = 0;

  function take(wanted) {
    part.value = wanted?.get("contains") ?? wanted?.get("prefix") ?? "";
    where.value = wanted?.has("prefix") ? "prefix" : "contains";
    const name = wanted?.get("cluster") ?? "";
    if (name !== "" && ![...cluster.options].some((option) => option.value === name)) {
      const option = element("option", { value: name }, name);
      option.dataset.key = name;
      cluster.append(option);
    }
    cluster.value = name;
  }

  function filters() {
    const wanted = new URLSearchParams();
    if (part.value !== "") wanted.set(where.value, part.value);
    if (cluster.value !== "") wanted.set("cluster", cluster.value);
    return wanted;
  }

  function draw(hold) {
    const waiting = patchList(list, names, (name) => name, (name) => element("li", {}, element("a", { href: topicLink(name) }, name)), () => {}, hold);
    waits.hidden = waiting === 0;
    setText(waits, `Show ${count(waiting, "change")} of the list`);
    more.hidden = !hasMore || pages >= PAGES_MAX;
    const all = filters().size === 0 && total !== null ? ` of ${thousands(total)}` : "";
    const beyond = hasMore && pages >= PAGES_MAX ? "; a longer text finds fewer" : "";
    setText(found, names.length === 0 ? "No topic has such a name." : hasMore ? `The first ${names.length}${all}${beyond}` : count(names.length, "topic"));
  }

  async function search(keep) {
    const mine = ++asked;
    const wanted = filters();
    wanted.set("limit", PAGE * pages);
    wanted.set("consistency", "stale");
    try {
      const answer = await read(`/v1/topics?${wanted}`);
      if (mine !== asked) return;
      names = answer.topics;
      hasMore = answer.next_cursor !== undefined;
      draw(keep && list.children.length > 0 && isInUse(list));
    } catch (error) {
      if (mine !== asked) return;
      setText(found, error.message);
      if (error.again) setTimeout(keep ? changed : typed, AGAIN_MS);
    }
  }

  const typed = paced(() => search(false), SEARCH_MS);
  const changed = paced(() => search(true), CHANGED_MS);
  const view = {
    title: "Topics",
    root,
    watched: "",
    show({ picture }) {
      total = picture.nameservers[0].topics;
      const clusters = [...new Set([...picture.rows.map((row) => row.cluster), ...(cluster.value ? [cluster.value] : [])])].sort();
      const chosen = cluster.value;
      patchList(cluster, ["", ...clusters], (name) => name, (name) => element("option", { value: name }), (option, name) => setText(option, name || "all clusters"));
      cluster.value = chosen;
      if (names.length > 0 && filters().size === 0) draw(isInUse(list));
    },
    changed,
    reopen(wanted) {
      if (wanted !== undefined && wanted.toString() !== filters().toString()) {
        take(wanted);
        filter();
      } else {
        changed();
      }
    },
  };

  function watch() {
    const wanted = new URLSearchParams({ kinds: "topics,members,console" });
    if (where.value === "prefix" && part.value !== "") wanted.set("prefix", part.value);
    if (cluster.value !== "") wanted.set("cluster", cluster.value);
    view.watched = wanted.toString();
  }

  function filter() {
    pages = 1;
    const wanted = filters();
    // Keep the filters in the address: when the user goes back from a topic, the same search appears again.
    address = wanted.size ? `#/topics?${wanted}` : "#/topics";
    history.replaceState(null, "", address);
    watch();
    typed();
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  part.addEventListener("input", filter);
  part.addEventListener("change", () => dispatchEvent(new Event("watch")));
  for (const choice of [where, cluster]) {
    choice.addEventListener("change", () => {
      filter();
      dispatchEvent(new Event("watch"));
    });
  }
  waits.addEventListener("click", () => draw(false));
  more.addEventListener("click", () => {
    pages += 1;
    search(false);
  });
  take(query);
  if (filters().size > 0) address = `#/topics?${filters()}`;
  watch();
  typed();
  return view;
}
