// Requests to the server, and the stream of the server's events. The server does not send an unchanged answer
// again.

const known = new Map(); // by path: entity tag and body of the newest answer

// The reason why a request failed, in words. `again` is true if the same request may succeed later.
export class Failed extends Error {
  constructor(words, again) {
    super(words);
    this.again = again;
  }
}

export async function read(path) {
  const before = known.get(path);
  const headers = before === undefined ? {} : { "If-None-Match": before.tag };
  let response;
  let body;
  try {
    response = await fetch(path, { headers, cache: "no-store" });
    if (response.status === 304) return before.body;
    body = await response.json();
  } catch {
    throw new Failed("no contact, trying again", true);
  }
  if (!response.ok) throw new Failed(body.detail ?? response.statusText, response.status >= 500);
  const tag = response.headers.get("ETag");
  if (tag !== null) {
    known.delete(path);
    known.set(path, { tag, body });
    if (known.size > 20) known.delete(known.keys().next().value);
  }
  return body;
}

export const AGAIN_MS = 2000; // pause after a failure

// A stream of events. It connects again after every failure, even after failures at which browsers give up.
export class Stream {
  constructor(onEvent, onState) {
    this.onEvent = onEvent;
    this.onState = onState;
    this.source = null;
    this.timer = 0;
    this.path = "";
  }

  open(path) {
    if (path === this.path && this.source !== null) return;
    this.path = path;
    this.close();
    this.connect();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  connect() {
    const source = new EventSource(this.path);
    this.source = source;
    source.addEventListener("open", () => this.onState("live"));
    source.addEventListener("error", () => {
      if (source !== this.source) return;
      this.onState("lost");
      this.close();
      this.timer = setTimeout(() => this.connect(), AGAIN_MS);
    });
    for (const name of ["reset", "topics", "brokers", "members", "console"]) {
      source.addEventListener(name, (event) => {
        if (source === this.source) this.onEvent(name, JSON.parse(event.data));
      });
    }
  }
}

// Return a function that starts `work` at once, but at most once in `everyMs` and never while it still runs.
// Calls that come too early lead to one start later.
export function paced(work, everyMs) {
  let timer = 0;
  let last = -Infinity;
  let under = false;
  let again = false;
  const run = async () => {
    timer = 0;
    last = performance.now();
    under = true;
    try {
      await work();
    } finally {
      under = false;
      if (again) {
        again = false;
        ask();
      }
    }
  };
  const ask = () => {
    if (under) again = true;
    else if (last + everyMs <= performance.now() && timer === 0) run();
    else if (timer === 0) timer = setTimeout(run, last + everyMs - performance.now());
  };
  return ask;
}
