// Follows /v1/watch, the changes of an organization's resources. EventSource cannot send the key's
// header, so the stream of server-sent events is read by fetch (HTML standard, 9.2.6: how such a stream
// is parsed). A connection that breaks or falls silent is made anew, and goes on where it was.

/** The server says something every 15 s, if only a comment. */
const SILENCE = 45_000;
const LONGEST_PAUSE = 15_000;

/** The events of a stream of bytes, one by one. */
async function* events(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = { type: "message", data: [], id: null };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const lines = (rest + value).split(/\r\n|\n|\r/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data.length) yield { type: event.type, data: event.data.join("\n"), id: event.id };
        event = { type: "message", data: [], id: null };
        continue;
      }
      const colon = line.indexOf(":");
      const name = colon < 0 ? line : line.slice(0, colon);
      const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (name === "event") event.type = text;
      if (name === "data") event.data.push(text);
      if (name === "id") event.id = text;
    }
  }
}

/** Follows until it is stopped. Tells `ready` (read anew from now on), `change` and `state`. */
export class Live {
  constructor(session, tell) {
    this.session = session;
    this.tell = tell;
    this.stopped = false;
    // Of a revision with several changes some may have been missed when a connection breaks: it goes
    // on after the last revision before it. What comes twice does no harm.
    this.complete = null;
    this.current = null;
  }

  stop() {
    this.stopped = true;
    this.connection?.abort();
  }

  async run() {
    let pause = 500;
    while (!this.stopped) {
      try {
        await this.follow(() => (pause = 500));
      } catch (error) {
        if (this.stopped) return;
        if (error.unauthorized) return this.session.ended("the API key is not known any more");
      }
      if (this.stopped) return;
      this.tell.state("reconnecting");
      // Not all consoles at once, after a server came back.
      await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random())));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  async follow(connected) {
    this.connection = new AbortController();
    let timer = null;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.connection.abort(), SILENCE);
    };
    heard();
    try {
      const more = this.complete === null ? {} : { "last-event-id": this.complete };
      const headers = this.session.headers({ accept: "text/event-stream", ...more });
      const response = await fetch("/v1/watch", { headers, signal: this.connection.signal, cache: "no-store" });
      if (response.status === 401) throw Object.assign(new Error(), { unauthorized: true });
      if (!response.ok) throw new Error(`the watch was answered ${response.status}`);
      const resumed = this.complete !== null;
      for await (const event of events(response.body, heard)) {
        if (event.type === "reset") {
          this.complete = this.current = null;
          return;
        }
        if (event.type === "ready") {
          this.complete = this.current = event.id;
          connected();
          this.tell.state("live");
          if (!resumed) this.tell.ready();
        } else {
          if (event.id !== this.current) {
            this.complete = this.current;
            this.current = event.id;
          }
          this.tell.change(event.type, JSON.parse(event.data));
        }
      }
    } finally {
      clearTimeout(timer);
      this.connection.abort();
    }
  }
}
