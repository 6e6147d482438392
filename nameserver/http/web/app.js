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

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  const step = Math.min(units.length - 1, bytes > 0 ? Math.floor(Math.log2(bytes) / 10) : 0);
  return `${(bytes / 1024 ** step).toFixed(step ? 1 : 0)} ${units[step]}`;
}

function showStatus(status, digest, raft) {
  const ready = status.reads_ready && status.writes_ready;
  byId("state").textContent = ready
    ? `${status.mode} mode, ready${raft ? `, ${status.role}` : ""}`
    : `${status.mode} mode, not ready: ${status.waiting_for || "no leader"}; what follows is local and may be stale`;
  byId("state").classList.toggle("bad", !ready);
  const rows = [["mode", status.mode]];
  if (raft) {
    rows.push(["role", status.role], ["leader", status.leader ?? "none known"], ["term", status.term],
      ["last contact", status.last_contact_ms === null ? "never"
        : `${status.last_contact_ms} ms ago, reads are refused above ${raft.contact_limit_ms} ms`],
      ["log", `committed ${status.commit_index}, applied here ${status.applied_index}`],
      ["durability", status.durability],
      ["journal", size(raft.journal_bytes) + (raft.storage_stalled ? ", the disk does not answer" : "")],
      ["snapshot", raft.snapshot_index === 0 ? "none yet" : `up to entry ${raft.snapshot_index}, ${size(raft.snapshot_bytes)}`
        + (raft.snapshot_age_s == null ? "" : `, ${duration(raft.snapshot_age_s * 1000)} old`)],
      ["seen since the start", `${raft.leader_changes} leader changes, ${raft.elections ?? 0} candidacies here, `
        + `${raft.refused_reads ?? 0} reads and ${raft.refused_writes ?? 0} writes refused`]);
  }
  rows.push(["revision", status.revision], ["connections", status.connections], ["version", status.version],
    ["digest of the table", digest.digest], ["uptime", duration(status.uptime_ms)]);
  byId("status").tBodies[0].replaceChildren(...rows.map(row));
  showMembers(status, raft);
}

function showMembers(status, raft) {
  byId("members-note").textContent = raft
    ? "All members hold one table; a follower may be a moment behind. Equal digests are equal tables."
    : "An independent nameserver: what it knows is what brokers told it. Another nameserver with the same digest"
      + " has the same table; a different one has drifted.";
  byId("members").hidden = !raft;
  if (!raft) return;
  const role = (member) => member === raft.me ? raft.role : member === raft.leader ? "leader"
    : (raft.learners ?? []).includes(member) ? "learner" : raft.linked.includes(member) ? "follower" : "unknown";
  byId("members").tBodies[0].replaceChildren(...raft.members.map((member) => {
    const linked = raft.linked.includes(member);
    const line = row([member, role(member), (raft.learners ?? []).includes(member) ? "not yet" : "yes",
      member === raft.me ? "this nameserver" : linked ? "up" : "down"]);
    line.lastChild.classList.toggle("bad", member !== raft.me && !linked);
    return line;
  }));
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
    const raft = status.body.mode === "raft" ? (await read("/v1/raft/status")).body : null;
    showStatus(status.body, digest.body, raft);
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
