/**
 * The five lessons: data for the engine in teacher.js.
 *
 * A lesson asks, acts and tells. `steps` are done in order: an `order` for the program, an `until` that every design
 * must reach, or a `wait`. Its time limit is `limit[0]` seconds, and `limit[1]` seconds more divided as the timers are.
 * `measure` reads the events, `happened` names the choice that came true (null: none of them did), and `seen` makes two
 * sentences of the measures. No figure stands in a text.
 */

import { duration } from "/drawings/states.js";
import { isWhole, knownBy } from "./picture.js";
import { DESIGNS, list, troubles } from "./words.js";

/** Everything is up, listed everywhere and answered rightly. */
const WHOLE = { tell: "Wait until everything is as before.", until: isWhole, limit: [60, 120] };

const each = (observed, measure) => Object.fromEntries(observed.names.map((name) => [name, measure(name)]));
const said = (measures, text) => list(Object.entries(measures).map(([name, value]) => text(value, DESIGNS[name].name, name)));
const time = (ms) => ms === null ? "not until the end" : `after ${duration(ms)}`;
const span = (ms, name) => ms ? `for ${duration(ms)} in ${name}` : `at no time in ${name}`;
const answers = (counters, name) => `${name} gave ${troubles(counters)}`;
const bad = ({ wrong, stale, refused, none }) => wrong + stale + refused + none;
const upper = (text) => text[0].toUpperCase() + text.slice(1);
/** Whether a test holds in just these of the designs that ran. */
const only = (measures, test, names) => Object.entries(measures).every(([name, value]) => test(value) === names.includes(name));

const serverOf = (design, name) => design.servers.find((server) => server.name === name);
const isLacking = (server, design) => server.life === "up" && server.answers && server.serves
  && design.brokers.some(({ name, life }) => life === "up" && !server.brokers.includes(name));
const hasLeader = (design) => design.servers.some(({ life, answers: isHeard, role }) => life === "up" && isHeard && role === "leader");
const contradict = (design) => new Set(design.servers.filter(({ life, answers: isHeard, serves }) => life === "up" && isHeard && serves)
  .map(({ brokers }) => [...brokers].sort().join())).size > 1;
const isForgotten = (broker) => (design) => design.clients.every(({ last }) => last?.brokers && !last.brokers.includes(broker));
const verdictOf = (design, client) => design.clients.find(({ name }) => name === client)?.last?.verdict ?? "none";
const isAnswered = (verdict) => ["right", "stale", "wrong"].includes(verdict);
const isWithout = (client, design) => {
  const brokers = knownBy(client, design);
  return brokers !== null && !brokers.includes("broker-2");
};

export const LESSONS = [
  {
    id: "restart-empty",
    title: "One server restarts empty",
    story: "Server 1 of each design will be killed. It loses its memory and its disk, and it starts again. "
      + "Brokers report to the servers again and again, and each report names the broker's topics.",
    question: "What will server 1 know when it answers its first question?",
    choices: [
      { id: "independent", text: "Independent: nothing, or not all brokers. Raft and ZooKeeper: all brokers." },
      { id: "all-know", text: "All brokers, in every design." },
      { id: "none-knows", text: "Not all brokers, in every design." },
    ],
    steps: [
      { id: "restart", tell: "Server 1 restarts empty.", order: { do: "restart-empty", target: "nameserver-1" } },
      WHOLE,
    ],
    measure: (observed) => ({
      lacking: each(observed, (name) => observed.during(name, "restart",
        (design) => isLacking(serverOf(design, "nameserver-1"), design))),
      back: each(observed, (name) => observed.settled(name, "restart", isWhole)),
      counters: each(observed, (name) => observed.counters(name)),
    }),
    happened: ({ lacking }) => only(lacking, Boolean, ["independent"]) ? "independent"
      : only(lacking, Boolean, []) ? "all-know"
      : only(lacking, Boolean, Object.keys(lacking)) ? "none-knows" : null,
    seen: ({ lacking, counters, back }) => [
      `Server 1 served a table without all brokers ${said(lacking, span)}.`,
      `${upper(said(counters, answers))}, and everything was as before ${said(back, (ms, name) => `${time(ms)} in ${name}`)}.`,
    ],
    claim: "“A light metadata server is enough.” RocketMQ's servers do not talk to each other, so no server can give "
      + "another one its table. A server that restarts knows nothing until the brokers have reported to it again.",
    link: { text: "Measured: nameservers restart", href: "/published/report.html#scenario-nameserver-restarts" },
  },
  {
    id: "leader-dies",
    title: "The leader dies",
    story: "In Raft and ZooKeeper one server leads: it puts all changes in order. Its sign is a star. "
      + "In Independent no server leads. The leader will be killed; in Independent any server will be.",
    question: "Which clients will notice it?",
    choices: [
      { id: "nobody", text: "None: another server answers, with or without a leader." },
      { id: "led", text: "Clients of Raft or ZooKeeper, until a new leader is elected. No client of Independent." },
      { id: "all", text: "Some clients of every design: they asked the server that died." },
    ],
    steps: [
      { id: "kill", tell: "The leader is killed.", order: { do: "kill", target: "leader" } },
      {
        tell: "Wait for a new leader, and for right answers.",
        until: (design) => (design.name === "independent" || hasLeader(design))
          && design.clients.every(({ last }) => last?.verdict === "right"),
        limit: [60, 60],
      },
      { tell: "Watch a moment longer.", wait: [2, 0] },
    ],
    measure: (observed) => ({
      lost: each(observed, (name) => observed.target(name, "kill")),
      leader: each(observed, (name) => observed.settled(name, "kill", hasLeader)),
      counters: each(observed, (name) => observed.counters(name)),
    }),
    happened: ({ counters }) => only(counters, (each) => bad(each) > 0, []) ? "nobody"
      : only(counters, (each) => bad(each) > 0, Object.keys(counters)) ? "all"
      : bad(counters.independent ?? { wrong: 0, stale: 0, refused: 0, none: 0 }) === 0 ? "led" : null,
    seen: ({ leader, counters }) => [
      `${upper(said(leader, (ms, text, name) => name === "independent" ? `${text} had no leader to lose`
        : ms === null ? `${text} had no new leader until the end` : `${text} had a new leader after ${duration(ms)}`))}.`,
      `Since the leader's death ${said(counters, answers)}.`,
    ],
    claim: "“No election of a master is needed.” RocketMQ's servers do not talk to each other: none leads, so none has "
      + "to be elected, and each one answers as long as it runs. The first lesson showed the price.",
    link: { text: "Measured: the leader fails", href: "/published/report.html#scenario-leader-fails" },
  },
  {
    id: "network-parts",
    title: "The network parts",
    story: "Server 2, broker 0 and client 0 will be cut off from all others. Nothing is killed: both sides run, and "
      + "neither knows whether the other one does.",
    question: "What will client 0 be answered on the smaller side?",
    choices: [
      { id: "both", text: "Independent answers on both sides, and the sides contradict each other. Raft and ZooKeeper give client 0 no answer." },
      { id: "all-answer", text: "Every design answers client 0, because server 2 runs." },
      { id: "none", text: "No design answers client 0, because server 2 has lost the others." },
    ],
    steps: [
      { id: "part", tell: "The network parts.", order: { do: "part", target: "nameserver-2" } },
      { tell: "Wait until the silence is longer than the servers' patience.", wait: [3, 150] },
      { id: "heal", tell: "The network is whole again.", order: { do: "heal" } },
      WHOLE,
    ],
    measure: (observed) => ({
      contradiction: each(observed, (name) => observed.during(name, "part", contradict)),
      parted: observed.between("part", "heal"),
      refused: each(observed, (name) => observed.during(name, "part",
        (design) => !isAnswered(verdictOf(design, "client-0")), "heal")),
      back: each(observed, (name) => observed.settled(name, "heal", isWhole)),
    }),
    happened: ({ refused, parted }) => {
      const isServed = (ms) => ms < parted / 2;
      return only(refused, isServed, ["independent"]) ? "both"
        : only(refused, isServed, Object.keys(refused)) ? "all-answer"
        : only(refused, isServed, []) ? "none" : null;
    },
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
      { id: "alike", text: "Both after the same time, in every design." },
    ],
    steps: [
      { id: "pause", tell: "Broker 1 falls silent.", order: { do: "pause", target: "broker-1" } },
      { tell: "Wait until no client is answered with broker 1.", until: isForgotten("broker-1"), limit: [40, 240] },
      { id: "kill", tell: "Broker 2 is killed.", order: { do: "kill", target: "broker-2" } },
      { tell: "Wait until no client is answered with broker 2.", until: isForgotten("broker-2"), limit: [40, 240] },
    ],
    measure: (observed) => ({
      silent: each(observed, (name) => observed.settled(name, "pause", isForgotten("broker-1"), "kill")),
      killed: each(observed, (name) => observed.settled(name, "kill", isForgotten("broker-2"))),
    }),
    happened: ({ silent, killed }) => {
      const sooner = Object.fromEntries(Object.keys(silent).map((name) => [name, killed[name] !== null && killed[name] < (silent[name] ?? Infinity) / 2]));
      if (only(sooner, Boolean, ["independent", "raft"])) return "killed-where-connected";
      return only(sooner, Boolean, Object.keys(sooner)) ? "killed" : only(sooner, Boolean, []) ? "alike" : null;
    },
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
      { id: "stop", tell: "Broker 2 is stopped kindly.", order: { do: "stop", target: "broker-2" } },
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
    happened: ({ last, by }) => {
      const worst = (way) => Math.max(...Object.keys(last).filter((name) => by[name] === way).map((name) => last[name] ?? Infinity));
      const [polled, watched] = [worst("poll"), worst("watch")];
      if (!Number.isFinite(polled) || !Number.isFinite(watched)) return null;
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
