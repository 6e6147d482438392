"use strict";

const TOPICS_SHOWN = 500;
const REFRESH_MS = 3000;
const byId = (id) => document.getElementById(id);
let topics = [];
let chosen = null;

async function read(path) {
  const response = await fetch(path, { cache: "no-store" });
  const body = await response.json();
  return { ok: response.ok, body };
}

function row(cells) {
  const line = document.createElement("tr");
  for (const text of cells) {
    line.append(Object.assign(document.createElement("td"), { textContent: text === null ? "" : String(text) }));
  }
  return line;
}

function duration(ms) {
  const s = Math.floor(ms / 1000);
  const parts = [[Math.floor(s / 86400), "d"], [Math.floor(s / 3600) % 24, "h"], [Math.floor(s / 60) % 60, "min"], [s % 60, "s"]];
  return parts.slice(Math.min(3, parts.findIndex(([n]) => n > 0) >>> 0)).map(([n, unit]) => `${n} ${unit}`).join(" ");
}

function showStatus(status, digest) {
  const ready = status.reads_ready && status.writes_ready;
  byId("state").textContent = ready
    ? `${status.mode} mode, ready${status.mode === "raft" ? `, ${status.role}` : ""}`
    : `${status.mode} mode, not ready: ${status.waiting_for || "no leader"}; what follows is local and may be stale`;
  byId("state").classList.toggle("bad", !ready);
  const group = status.mode === "independent" ? [] : ["role", "leader", "term", "commit_index", "applied_index",
    "last_contact_ms", "durability"];
  const shown = ["mode", ...group, "revision", "connections", "version"];
  byId("status").tBodies[0].replaceChildren(
    ...shown.filter((name) => status[name] != null).map((name) => row([name.replaceAll("_", " "), status[name]])),
    row(["digest of the table", digest.digest]), row(["uptime", duration(status.uptime_ms)]));
  byId("members-note").textContent = status.members.length
    ? "All members hold one table; a follower may be a moment behind. Equal digests are equal tables."
    : "An independent nameserver: what it knows is what brokers told it. Another nameserver with the same digest"
      + " has the same table; a different one has drifted.";
  byId("members").replaceChildren(...status.members.map((member) => Object.assign(document.createElement("li"),
    { textContent: member === status.leader ? `${member} (leader)` : member })));
}

function showBrokers(brokers) {
  byId("brokers-note").textContent = brokers.length ? "" : "No broker has registered here.";
  byId("brokers").tBodies[0].replaceChildren(...brokers.map((broker) => row([broker.cluster, broker.broker_name,
    broker.broker_id, broker.broker_addr, broker.topics, `${broker.lease_ms / 1000} s`, broker.index])));
}

function showTopics() {
  const part = byId("filter").value.toLowerCase();
  const found = topics.filter((topic) => topic.toLowerCase().includes(part));
  byId("topics-note").textContent = found.length > TOPICS_SHOWN
    ? `${found.length} topics, the first ${TOPICS_SHOWN} are shown` : `${found.length} topics`;
  byId("topics").replaceChildren(...found.slice(0, TOPICS_SHOWN).map((topic) => {
    const button = Object.assign(document.createElement("button"), { textContent: topic, type: "button" });
    button.addEventListener("click", () => { chosen = topic; showRoute(); });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
}

async function showRoute() {
  if (chosen === null) return;
  const topic = chosen;
  const path = `/v1/topics/${encodeURIComponent(topic)}`;
  const [route, explanation] = await Promise.all([
    read(`${path}/route?consistency=stale`), read(`${path}/explain?consistency=stale`)]);
  if (topic !== chosen) return;
  byId("route-section").hidden = false;
  byId("route-topic").textContent = topic;
  byId("route-note").textContent = `${explanation.body.summary ?? route.body.detail} (index ${route.body.index})`;
  const addresses = {};
  for (const broker of route.ok ? route.body.route.brokerDatas : []) {
    addresses[broker.brokerName] = Object.entries(broker.brokerAddrs).map(([id, addr]) => `${id}: ${addr}`).join(", ");
  }
  byId("route").tBodies[0].replaceChildren(...(route.ok ? route.body.route.queueDatas : []).map((queues) => row([
    queues.brokerName, addresses[queues.brokerName] ?? "", queues.readQueueNums, queues.writeQueueNums,
    `${queues.perm & 4 ? "R" : "-"}${queues.perm & 2 ? "W" : "-"}`])));
  byId("route-causes").replaceChildren(...(explanation.body.likely_causes ?? []).map((cause) =>
    Object.assign(document.createElement("li"), { textContent: cause })));
}

async function refresh() {
  try {
    const [status, digest, brokers, listed] = await Promise.all([
      read("/v1/status"), read("/v1/digest"), read("/v1/brokers?consistency=stale"), read("/v1/topics?consistency=stale")]);
    showStatus(status.body, digest.body);
    showBrokers(brokers.body.brokers);
    topics = listed.body.topics;
    showTopics();
    await showRoute();
  } catch (error) {
    byId("state").textContent = `no answer: ${error.message}`;
    byId("state").classList.add("bad");
  }
  setTimeout(refresh, REFRESH_MS);
}

byId("filter").addEventListener("input", showTopics);
refresh();
