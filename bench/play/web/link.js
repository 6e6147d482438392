/**
 * The page's connection to the program. It receives the state of all designs and all changes, and sends commands.
 *
 * The program's stream of events begins with the whole state of all designs; then the page fetches the log of changes.
 * If the stream is lost, the browser opens it again, and gets only the missed changes. If the program answers with an
 * error, or if the log does not come, the page opens a new stream. The callbacks in `readers` report all changes.
 */

import { Calm } from "./calm.js";
import { History, applyTick } from "./picture.js";

const AGAIN_MS = 1000;
/**
 * Time in ms without a message after which the page reports that the program does not answer. Normally a tick comes
 * twice a second.
 */
export const OLD_MS = 3000;

export class Program {
  /**
   * @param {object} readers
   * @param {(program: Program) => void} readers.onBegin A session began, or the page connected to it again.
   * @param {(change: object, before: object) => void} readers.onChange A change came; `before` is the state before it.
   * @param {() => void} readers.onTick A tick brought newer ages and counters.
   * @param {(isThere: boolean) => void} readers.onLink The program began to answer, or it does not answer any more.
   */
  constructor({ onBegin, onChange, onTick, onLink }) {
    Object.assign(this, { onBegin, onChange, onTick, onLink });
    /** The present state of all designs, with the times of the last tick; null until the program has sent a state. */
    this.state = null;
    this.history = null;
    /** The session's quiet times (times without a fault), and the answers that were not right. */
    this.calm = null;
    this.traffic = new Map();
    this.isThere = false;
    this.heardAt = 0;
    /** Changes that came while the page was fetching the log; null at other times. */
    this.early = null;
    setInterval(() => this.#watch(), 500);
  }

  /** Open the stream. */
  open() {
    this.stream?.close();
    this.stream = new EventSource("/v1/events");
    this.stream.addEventListener("state", () => this.#begin());
    this.stream.addEventListener("change", (event) => this.#change(JSON.parse(event.data)));
    this.stream.addEventListener("tick", (event) => this.#tick(JSON.parse(event.data)));
    this.stream.addEventListener("error", () => {
      this.#there(false);
      if (this.stream.readyState === EventSource.CLOSED) setTimeout(() => this.open(), AGAIN_MS);
    });
  }

  /**
   * Send a command; return the program's answer.
   *
   * @throws {Error} If the program refused the command; the message is the reason.
   */
  async order(order) {
    return post("/v1/actions", order);
  }

  /** Save the session; return the folder, and the commands that use the folder. */
  async save() {
    return post("/v1/save");
  }

  async #begin() {
    this.#there(true);
    const early = [];
    this.early = early;
    const log = await fetchLog();
    if (this.early !== early) return; // the stream began again in the meantime, and a later call fetches the log
    this.early = null;
    if (!log) {
      // Without the log, later changes are of no use. Only a new stream begins with a state, and so leads here again.
      this.stream.close();
      this.#there(false);
      setTimeout(() => this.open(), AGAIN_MS);
      return;
    }
    this.history = new History({ base: log.base, changes: [] });
    this.calm = new Calm(log.base);
    for (const change of [...log.changes, ...early]) this.#add(change);
    this.state = this.history.last;
    this.onBegin(this);
  }

  #change(change) {
    this.#there(true);
    if (this.early) {
      this.early.push(change);
      return;
    }
    if (!this.history || change.id <= this.history.last.id) return;
    const before = this.history.last;
    this.#add(change);
    this.state = this.tick ? applyTick(this.history.last, this.tick) : this.history.last;
    this.onChange(change, before);
  }

  #add(change) {
    if (change.id <= this.history.last.id) return;
    this.history.add(change);
    this.calm.add(change, this.history.last);
  }

  #tick(tick) {
    this.#there(true);
    this.tick = tick;
    if (!this.history || this.early) return;
    this.state = applyTick(this.history.last, tick);
    for (const { design, traffic } of tick.designs) this.traffic.set(design, traffic ?? []);
    this.onTick();
  }

  #there(isThere) {
    if (isThere) this.heardAt = performance.now();
    if (this.isThere === isThere) return;
    this.isThere = isThere;
    this.onLink(isThere);
  }

  #watch() {
    if (this.isThere && performance.now() - this.heardAt > OLD_MS) this.#there(false);
  }
}

/** Return the log of changes; null if the program does not answer, or answers with an error. */
async function fetchLog() {
  try {
    const response = await fetch("/v1/log", { cache: "no-store" });
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

async function post(path, body) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: body && JSON.stringify(body),
    });
  } catch {
    throw new Error("The playground does not answer. Is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `The playground answered with status ${response.status}.`);
  return answer;
}
