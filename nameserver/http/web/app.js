// The main script of the page. It opens the part of the page that the address names, reads new data after an event
// from the server, and sets the focus.

import * as cluster from "/cluster.js";
import { Stream, paced, read } from "/server.js";
import { element, setAttribute, setText } from "/dom.js";

// Parts of the page that the first screen does not need. The page loads them after the server's first answer,
// or when the user opens such a part.
const PARTS = {
  broker: () => import("/broker.js"),
  history: () => import("/history.js"),
  topic: () => import("/topic.js"),
  topics: () => import("/topics.js"),
};

// Shown in place of a part that could not be loaded.
const NOT_LOADED = {
  open: () => ({
    title: "Not loaded",
    root: element("section", { class: "part" }, element("h1", { tabindex: "-1" }, "Not loaded"),
      element("p", { role: "alert" }, "A part of this page was not loaded. Reload the page.")),
    show() {},
  }),
};

const PULSE_MS = 10000;
const CLUSTER_MS = 500;
const PARTS_MS = 300;
const main = document.getElementById("main");
const live = document.getElementById("live");

// The newest data about all nameservers, for every part of the page.
export const known = { picture: null, pulse: null, happened: -1 };

const kept = new Map(); // parts that keep their state while another part is shown: cluster, topics, history
let shown = null;
let failure = "";
let state = "connecting";

function showState() {
  const words = state === "live" && failure === "" ? "live" : state === "lost" ? "no contact, trying again"
    : failure !== "" ? `not up to date: ${failure}` : "connecting";
  setText(live, words);
  live.classList.toggle("bad", state === "lost" || failure !== "");
  document.body.classList.toggle("stale", state === "lost");
}

// Do `work`, and show why it failed. Its next success ends the failure, unless it returns false.
async function attempt(work) {
  try {
    if (await work() !== false) failure = "";
  } catch (error) {
    failure = error.message;
  }
  showState();
}

const refreshPicture = paced(() => attempt(async () => {
  const first = known.picture === null;
  const [picture] = await Promise.all([read("/v1/console/cluster"), first ? readPulse() : null]);
  known.picture = picture;
  if (known.pulse?.tag !== picture.tag) await readPulse();
  if (first) setTimeout(() => Promise.allSettled(Object.values(PARTS).map((load) => load())), PARTS_MS);
  shown?.show(known);
}), CLUSTER_MS);

async function readPulse() {
  known.pulse = await read("/v1/console/pulse");
}

function refreshPulse() {
  if (document.hidden) return;
  attempt(async () => {
    await readPulse();
    if (known.pulse.tag !== known.picture?.tag) {
      refreshPicture();
      return false; // the picture is still old, so only its own success ends a failure
    }
    shown?.show(known);
    return true;
  });
}

const stream = new Stream((name, data) => {
  if (name === "console") {
    if (data.tag !== "" && data.tag !== known.picture?.tag) refreshPicture();
    if (data.happened !== known.happened) {
      known.happened = data.happened;
      shown?.happened?.();
    }
  } else if (name === "reset") {
    refreshPicture();
    shown?.changed?.();
  } else if (name === "topics") {
    shown?.changed?.(data);
  } else {
    refreshPicture();
    if (name === "brokers") shown?.changed?.(data);
  }
}, (now) => {
  state = now;
  showState();
});

function partOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const words = path.split("/").map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
  if (words[0] === "topics" && words.length > 1) return { page: "topics", load: PARTS.topic, words: words.slice(1) };
  if (words[0] === "topics") return { page: "topics", load: PARTS.topics, words: [], keep: "topics", query: new URLSearchParams(query) };
  if (words[0] === "brokers" && words.length > 2) return { page: "cluster", load: PARTS.broker, words: words.slice(1) };
  if (words[0] === "history") return { page: "history", load: PARTS.history, words: [], keep: "history" };
  return { page: "cluster", load: null, words: [], keep: "cluster" };
}

async function navigate(first) {
  const address = location.hash;
  const part = partOf(address);
  let module = cluster;
  if (part.load !== null) {
    try {
      module = await part.load();
    } catch {
      module = NOT_LOADED;
      part.keep = undefined; // the next visit loads the module again
    }
    if (location.hash !== address) return; // the user has opened another part meanwhile
  }
  if (shown !== null) {
    shown.focused = main.contains(document.activeElement) ? document.activeElement : shown.focused;
    shown.scrolled = scrollY;
    if (!shown.keep) shown.close?.();
  }
  let next = part.keep ? kept.get(part.keep) : undefined;
  if (next === undefined) {
    next = module.open(part.words, part.query);
    next.keep = part.keep;
    if (part.keep) kept.set(part.keep, next);
  } else {
    next.reopen?.(part.query);
  }
  shown = next;
  main.replaceChildren(next.root);
  document.title = `${next.title} - RouteKeeper`;
  for (const link of document.querySelectorAll("nav a")) {
    setAttribute(link, "aria-current", link.dataset.page === part.page ? "page" : null);
  }
  if (known.picture !== null) next.show(known);
  stream.open(`/v1/watch?state=none&${next.watched ?? "kinds=brokers,members,console"}`);
  if (first) return;
  // In a part that was open before, focus the same element again. Otherwise focus the heading, which names the part.
  const target = next.focused?.isConnected ? next.focused : next.root.querySelector("h1");
  target?.focus({ preventScroll: true });
  scrollTo(0, next.focused?.isConnected ? next.scrolled ?? 0 : 0);
}

// A part sends this event when its filters change, because it then needs a stream with other events.
addEventListener("watch", () => {
  if (shown !== null) stream.open(`/v1/watch?state=none&${shown.watched}`);
});
addEventListener("hashchange", () => navigate(false));
document.addEventListener("visibilitychange", refreshPulse);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // keep the address: the text after its # names the part
  main.focus();
});
setInterval(refreshPulse, PULSE_MS);
navigate(true);
refreshPicture();
