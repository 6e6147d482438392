/**
 * The five lessons, as data; teacher.js runs them.
 *
 * A lesson asks a question, executes its `steps` one after the other, and shows the result. The kinds of steps are:
 *
 * - A step with `orders` sends these commands to the program.
 * - A step with `until` waits until the function `until` is true for every design.
 * - A step with `orders`, `until` and `again` sends the commands every `again` seconds to the designs for which `until`
 *   is not true yet.
 * - A step with `wait` only waits.
 *
 * A time limit has two parts: `limit[0]` seconds, and `limit[1]` seconds divided by the timers' divisor.
 *
 * These functions make the result:
 *
 * - `measure` computes values from the session's changes.
 * - `verdict` describes one design by one word (`is`) and by a sentence with the reason (`text`).
 * - `happened` gets the verdicts of all designs, and names the choice that came true; null if none did.
 * - `seen` makes two sentences from the values.
 *
 * All of them use the same values, so the choice and the sentences cannot contradict each other. No text contains a
 * fixed figure.
 */

import { duration } from "/drawings/states.js";
import { badOf, isNoise } from "./calm.js";
import { isWhole, knownBy } from "./picture.js";
import { DESIGNS, counted, list, named, troubles } from "./words.js";

/** Step that waits until every process runs, every server lists every broker, and every answer is right. */
const WHOLE = { tell: "Wait until everything is as before.", until: isWhole, limit: [60, 120] };

const each = (observed, measure) => Object.fromEntries(observed.names.map((name) => [name, measure(name)]));
const said = (measures, text) => list(Object.entries(measures).map(([name, value]) => text(value, DESIGNS[name].name, name)));
const time = (ms) => ms === null ? "not until the end" : `after ${duration(ms)}`;
const span = (ms, name) => ms ? `for ${duration(ms)} in ${name}` : `at no time in ${name}`;
const answers = (counters, name) => `${name} gave ${troubles(counters)}`;
const upper = (text) => text[0].toUpperCase() + text.slice(1);
/** Return whether the designs in `names` have the verdict `word`, and all other designs the verdict `other`. */
const only = (verdicts, [word, other], names) =>
  Object.entries(verdicts).every(([name, { is }]) => is === (names.includes(name) ? word : other));
const notRight = (counts) => `${counted(badOf(counts), "answer")} ${badOf(counts) === 1 ? "was" : "were"} not right (${troubles(counts)})`;

const BROKERS = [0, 1, 2].map((n) => `broker-${n}`);
const serverOf = (design, name) => design.servers.find((server) => server.name === name);
const isLacking = (server, design) => server.life === "up" && server.answers && server.serves
  && design.brokers.some(({ name, life }) => life === "up" && !server.brokers.includes(name));
const hasLeader = (design) => design.servers.some(({ life, answers: isHeard, role }) => life === "up" && isHeard && role === "leader");
const contradict = (design) => new Set(design.servers.filter(({ life, answers: isHeard, serves }) => life === "up" && isHeard && serves)
  .map(({ brokers }) => [...brokers].sort().join())).size > 1;
const isServing = ({ life, answers: isHeard, serves }) => life === "up" && isHeard && serves;
/** Return whether the last answer that client 1 got came from server 1 after server 1's restart. */
const isAsked = (design, acts) => {
  const { last } = design.clients.find(({ name }) => name === "client-1");
  return last?.server === "nameserver-1" && isAnswered(last.verdict) && last.done_ms > acts.get("restart").at_ms;
};
const isForgotten = (broker) => (design) => design.clients.every(({ last }) => last?.brokers && !last.brokers.includes(broker));
const verdictOf = (design, client) => design.clients.find(({ name }) => name === client)?.last?.verdict ?? "none";
const isAnswered = (verdict) => ["right", "stale", "wrong"].includes(verdict);
const isWithout = (client, design) => {
  const brokers = knownBy(client, design);
  return brokers !== null && !brokers.includes("broker-2");
};

/** Return in words the numbers of the given answers that were not right. */
function costOf(given) {
  const counts = { wrong: 0, stale: 0, refused: 0, none: 0 };
  for (const { verdict } of given) if (verdict in counts) counts[verdict] += 1;
  const bad = badOf(counts);
  return bad ? `${troubles(counts)} ${bad === 1 ? "answer" : "answers"}` : given.length ? "only right answers" : "no answer";
}

export const LESSONS = [
  {
    id: "restart-empty",
    title: "One server restarts empty",
    story: "Server 1 of each design will be killed, lose its disk, and start again. Then client 1 will come to it, as a "
      + "client that starts may. Brokers report to the servers again and again, and each report names the broker's "
      + "topics. The next report may come at once or much later. Here, in every design, no report reaches server 1 until "
      + "client 1 has asked it.",
    question: "What will server 1 know when it answers client 1?",
    choices: [
      { id: "independent", text: "Independent: nothing, or not all brokers. Raft and ZooKeeper: all brokers." },
      { id: "all-know", text: "All brokers, in every design." },
      { id: "none-knows", text: "Not all brokers, in every design." },
    ],
    steps: [
      { id: "kill", tell: "Server 1 is killed. Its clients go to another server.", orders: [{ do: "kill", target: "nameserver-1" }] },
      {
        id: "hold",
        tell: "The brokers' reports to server 1 are held back.",
        orders: BROKERS.map((broker) => ({ do: "cut", target: broker, to: "nameserver-1", oneway: true })),
      },
      { id: "restart", tell: "Server 1 starts again, empty.", orders: [{ do: "restart-empty", target: "nameserver-1" }] },
      {
        tell: "Wait until it answers.",
        until: (design) => isServing(serverOf(design, "nameserver-1")),
        limit: [60, 120],
      },
      {
        id: "come",
        tell: "Client 1 comes to server 1 and asks.",
        orders: [{ do: "reconnect", target: "client-1", to: "nameserver-1" }],
        until: isAsked,
        again: 5,
        limit: [60, 60],
      },
      { tell: "Watch a moment longer.", wait: [2, 0] },
      { id: "heal", tell: "The reports come again.", orders: [{ do: "heal" }] },
      WHOLE,
    ],
    measure: (observed) => ({
      lacking: each(observed, (name) => observed.during(name, "restart",
        (design) => isLacking(serverOf(design, "nameserver-1"), design))),
      answers: each(observed, (name) => observed.answers(name, "client-1", "nameserver-1", "restart")),
    }),
    verdict: ({ answers: given }, name) => {
      const [first] = given[name];
      if (!first) return { is: "unclear", text: "unclear, because server 1 did not answer client 1" };
      const brokers = BROKERS.filter((broker) => first.brokers?.includes(broker));
      const listed = `its first answer to client 1 listed ${brokers.length ? list(brokers.map(named)) : "no broker"}`;
      return brokers.length < BROKERS.length
        ? { is: "lacking", text: `server 1 did not know all brokers (${listed}), because no report had reached it, and no server gave it a whole table` }
        : { is: "all", text: `server 1 knew all brokers (${listed}), because another server gave it the table: no report had reached it` };
    },
    happened: (verdicts) => only(verdicts, ["lacking", "all"], ["independent"]) ? "independent"
      : only(verdicts, ["lacking", "all"], []) ? "all-know"
      : only(verdicts, ["lacking", "all"], Object.keys(verdicts)) ? "none-knows" : null,
    seen: ({ lacking, answers: given }) => [
      `While its reports were held back, server 1 served a table without all brokers ${said(lacking, span)}.`,
      `To client 1 it gave ${said(given, (all, name) => `${costOf(all)} in ${name}`)}.`,
    ],
    claim: "RocketMQ's documents say: “A light metadata server is enough.” RocketMQ's servers do not talk to each other, so no server can give "
      + "another one its table. A server that restarts knows nothing until the brokers have reported to it again.",
    link: { text: "Measured: nameservers restart", href: "/published/report.html#scenario-nameserver-restarts" },
  },
  {
    id: "leader-dies",
    title: "The leader dies",
    story: "In Raft and ZooKeeper one server leads: it puts all changes in order. Its sign is a star. "
      + "In Independent no server leads. The leader will be killed. In Independent, that server will be killed which "
      + "most clients ask.",
    question: "Which clients will notice it, by an answer that is not right?",
    choices: [
      { id: "nobody", text: "None: another server answers, with or without a leader." },
      { id: "led", text: "Only clients of Raft, of ZooKeeper or of both, until a new leader leads. No client of Independent." },
      { id: "all", text: "Some clients of every design: they asked the server that died." },
    ],
    steps: [
      { id: "kill", tell: "The leader is killed.", orders: [{ do: "kill", target: "leader" }] },
      {
        tell: "Wait for a new leader, and for right answers.",
        until: (design) => (design.name === "independent" || hasLeader(design))
          && design.clients.every(({ last }) => last?.verdict === "right"),
        limit: [60, 60],
      },
      { tell: "Watch a moment longer.", wait: [2, 0] },
    ],
    measure: (observed) => ({
      leader: each(observed, (name) => observed.settled(name, "kill", hasLeader)),
      counters: each(observed, (name) => observed.counters(name)),
      compared: each(observed, (name) => observed.compared(name, "kill")),
    }),
    verdict: ({ counters, compared }, name) => {
      const since = counters[name];
      if (!badOf(since)) return { is: "unnoticed", text: "no client noticed it, because every answer since then was right" };
      const quiet = compared[name];
      if (isNoise(quiet)) {
        return { is: "unclear", text: `unclear, because ${notRight(since)}, but answers failed in as much time before it as well, `
          + `although nothing was broken (${troubles(quiet.before)}): this machine is slow` };
      }
      const earlier = quiet ? `, and before it ${badOf(quiet.before) ? `fewer (${troubles(quiet.before)})` : "none"} in as much time` : "";
      return { is: "noticed", text: `its clients noticed it, because ${notRight(since)}${earlier}` };
    },
    happened: (verdicts) => {
      const noticed = Object.keys(verdicts).filter((name) => verdicts[name].is === "noticed");
      if (Object.values(verdicts).some(({ is }) => is === "unclear")) return null;
      return !noticed.length ? "nobody" : noticed.length === Object.keys(verdicts).length ? "all"
        : noticed.includes("independent") ? null : "led";
    },
    seen: ({ leader, counters }) => [
      `${upper(said(leader, (ms, text, name) => name === "independent" ? `${text} had no leader to lose`
        : ms === null ? `${text} had no new leader until the end` : `${text} had a new leader after ${duration(ms)}`))}.`,
      `Since the leader's death ${said(counters, answers)}.`,
    ],
    claim: "RocketMQ's documents say: “No election of a master is needed.” Its servers do not talk to each other, so "
      + "none leads. Servers with a leader store no change during an election, however short it is, and a server that "
      + "knows no leader for long stops answering. The first lesson showed what it costs to do without.",
    link: { text: "Measured: the leader fails", href: "/published/report.html#scenario-leader-fails" },
  },
  {
    id: "network-parts",
    title: "The network parts",
    story: "Server 2, broker 0 and client 0 will be cut off from all others. Nothing is killed: both sides run, and "
      + "neither knows whether the other one does.",
    question: "What will client 0 be answered on the smaller side?",
    choices: [
      { id: "both", text: "Independent answers on both sides. Raft and ZooKeeper give client 0 no answer." },
      { id: "all-answer", text: "Every design answers client 0, because server 2 runs." },
      { id: "none", text: "No design answers client 0, because server 2 has lost the others." },
    ],
    steps: [
      { id: "part", tell: "The network parts.", orders: [{ do: "part", target: "nameserver-2" }] },
      { tell: "Wait until the silence is longer than the servers' patience.", wait: [3, 150] },
      { id: "heal", tell: "The network is whole again.", orders: [{ do: "heal" }] },
      WHOLE,
    ],
    measure: (observed) => ({
      contradiction: each(observed, (name) => observed.during(name, "part", contradict)),
      parted: observed.between("part", "heal"),
      refused: each(observed, (name) => observed.during(name, "part",
        (design) => !isAnswered(verdictOf(design, "client-0")), "heal")),
      back: each(observed, (name) => observed.settled(name, "heal", isWhole)),
    }),
    verdict: ({ refused, parted }, name) => {
      const share = `was without an answer for ${duration(refused[name])} of the ${duration(parted)}`;
      return refused[name] < parted / 2 ? { is: "served", text: `client 0 was answered, because it ${share}` }
        : { is: "unserved", text: `client 0 was not answered, because it ${share}` };
    },
    happened: (verdicts) => only(verdicts, ["served", "unserved"], ["independent"]) ? "both"
      : only(verdicts, ["served", "unserved"], Object.keys(verdicts)) ? "all-answer"
      : only(verdicts, ["served", "unserved"], []) ? "none" : null,
    seen: ({ contradiction, refused }) => [
      `The servers contradicted each other ${said(contradiction, span)}.`,
      `While the network was parted, client 0 was without an answer ${said(refused, span)}.`,
    ],
    claim: "Agreement costs availability. RocketMQ's servers need not agree, so each of them goes on answering on its "
      + "side. Servers that share one table refuse where they are fewer than half.",
    link: { text: "Measured: the network parts", href: "/published/report.html#scenario-partition" },
  },
  {
    id: "silence",
    title: "A broker falls silent, another one is killed",
    story: "Broker 1 will be paused: its connections stay open, and it says nothing. When every client has left it "
      + "out, broker 2 will be killed: the system closes its connections.",
    question: "Which of the two will the clients leave out sooner?",
    choices: [
      { id: "killed-where-connected", text: "The killed one in Independent and Raft. ZooKeeper needs about as long for both." },
      { id: "killed", text: "The killed one, in every design." },
      { id: "alike", text: "Neither much sooner than the other, in every design." },
    ],
    steps: [
      { id: "pause", tell: "Broker 1 falls silent.", orders: [{ do: "pause", target: "broker-1" }] },
      { tell: "Wait until no client is answered with broker 1.", until: isForgotten("broker-1"), limit: [40, 240] },
      { id: "kill", tell: "Broker 2 is killed.", orders: [{ do: "kill", target: "broker-2" }] },
      { tell: "Wait until no client is answered with broker 2.", until: isForgotten("broker-2"), limit: [40, 240] },
    ],
    measure: (observed) => ({
      silent: each(observed, (name) => observed.settled(name, "pause", isForgotten("broker-1"), "kill")),
      killed: each(observed, (name) => observed.settled(name, "kill", isForgotten("broker-2"))),
    }),
    verdict: ({ silent, killed }, name) => {
      if (silent[name] === null || killed[name] === null) {
        return { is: "unclear", text: `unclear, because answers named the ${killed[name] === null ? "killed" : "silent"} broker until the end` };
      }
      const times = `answers named it for ${duration(killed[name])}, and the silent one for ${duration(silent[name])}`;
      return killed[name] < silent[name] / 2 ? { is: "sooner", text: `the killed one was left out much sooner, because ${times}` }
        : { is: "alike", text: `the killed one was not left out much sooner, because ${times}` };
    },
    happened: (verdicts) => only(verdicts, ["sooner", "alike"], ["independent", "raft"]) ? "killed-where-connected"
      : only(verdicts, ["sooner", "alike"], Object.keys(verdicts)) ? "killed"
      : only(verdicts, ["sooner", "alike"], []) ? "alike" : null,
    seen: ({ silent, killed }) => [
      `Answers left out the silent broker ${said(silent, (ms, name) => `${time(ms)} in ${name}`)}.`,
      `They left out the killed one ${said(killed, (ms, name) => `${time(ms)} in ${name}`)}.`,
    ],
    claim: "A killed process closes its connections, and RocketMQ's servers drop a broker as soon as its connection "
      + "closes. A silent one keeps them open, so only a time limit ends it: two minutes in RocketMQ. ZooKeeper waits for "
      + "the end of the session in both cases.",
    link: { text: "Measured: a broker dies", href: "/published/report.html#scenario-broker-dies" },
  },
  {
    id: "poll-or-watch",
    title: "Polling or watching",
    story: "Every client keeps a copy of the route. Broker 2 will be stopped kindly: it tells the servers that it goes, "
      + "and they drop it at once. Clients of Independent and Raft read the route again in fixed intervals (they poll). "
      + "Clients of ZooKeeper leave a request that is answered when something changes (they watch).",
    question: "When will all clients drop broker 2 from their copies?",
    choices: [
      { id: "watch", text: "Clients that watch drop it almost at once. Clients that poll drop it when they read the route again." },
      { id: "alike", text: "All clients drop it after about the same time." },
      { id: "poll", text: "Clients that poll drop it first." },
    ],
    steps: [
      { id: "stop", tell: "Broker 2 is stopped kindly.", orders: [{ do: "stop", target: "broker-2" }] },
      {
        tell: "Wait until no client's copy lists it.",
        until: (design) => design.clients.every((client) => isWithout(client, design)),
        limit: [40, 120],
      },
    ],
    measure: (observed) => ({
      first: each(observed, (name) => observed.first(name, "stop", (design) => design.clients.some((client) => isWithout(client, design)))),
      last: each(observed, (name) => observed.first(name, "stop", (design) => design.clients.every((client) => isWithout(client, design)))),
      by: each(observed, (name) => observed.now(name).clients[0]?.cached[0]?.by ?? "poll"),
    }),
    verdict: ({ last, by }, name) => {
      if (last[name] === null) return { is: "unclear", text: "unclear, because a copy listed broker 2 until the end" };
      const how = by[name] === "watch" ? "its clients watch, and the change answered their request" : "its clients poll, and each had to read the route again first";
      return { is: by[name], ms: last[name], text: `the last client dropped broker 2 after ${duration(last[name])}, because ${how}` };
    },
    happened: (verdicts) => {
      const all = Object.values(verdicts);
      const worst = (way) => Math.max(...all.filter(({ is }) => is === way).map(({ ms }) => ms));
      const [polled, watched] = [worst("poll"), worst("watch")];
      if (all.some(({ is }) => is === "unclear") || !Number.isFinite(polled) || !Number.isFinite(watched)) return null;
      return watched < polled / 2 ? "watch" : polled < watched / 2 ? "poll" : "alike";
    },
    seen: ({ first, last, by }) => [
      `The last client dropped broker 2 ${said(last, (ms, text, name) => `${time(ms)} in ${text} (they ${by[name]})`)}.`,
      `The first client dropped it ${said(first, (ms, name) => `${time(ms)} in ${name}`)}.`,
    ],
    claim: "“Clients ask every 30 s and may learn of a change late.” That is true of every design whose clients poll. "
      + "It depends on how clients ask, and not on where the table is kept.",
    link: { text: "Measured: how old answers are", href: "/published/report.html#scenario-staleness" },
  },
];
