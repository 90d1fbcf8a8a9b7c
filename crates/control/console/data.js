// What the organization has, read once and then kept up to date by the watch. Pages look at it and are
// told, at most ten times a second, that something is another now.

import { Live } from "./live.js";

const KINDS = [
  "environments", "networks", "subnets", "ports", "keypairs", "vms", "groups",
  "regions", "flavors", "images", "events",
];
/** Most events that are kept: the newest. */
const EVENTS = 2000;
const EVERY = 100;

/** Resources by kind and id. */
export class Data {
  constructor(session, { changed, state, failed }) {
    this.session = session;
    this.kinds = new Map(KINDS.map((kind) => [kind, new Map()]));
    /** Kinds of which there are more than could be read. */
    this.cut = new Set();
    this.loaded = false;
    this.told = { changed, failed };
    this.timer = null;
    this.waiting = null;
    this.indexes = new Map();
    this.live = new Live(session, {
      state,
      ready: () => this.load(),
      change: (type, change) => this.take(type, change),
    });
    this.live.run();
  }

  stop() {
    this.live.stop();
    clearTimeout(this.timer);
  }

  /** All of a kind, oldest first. */
  list(kind) {
    return [...this.kinds.get(kind).values()];
  }

  get(kind, id) {
    return this.kinds.get(kind).get(id);
  }

  /** What it is called; its number if it is there no more. */
  name(kind, id) {
    return this.get(kind, id)?.name ?? `#${id}`;
  }

  /** All of a kind whose `field` is `id`: grouped once for each change of the kind. */
  of(kind, field, id) {
    const index = `${kind}/${field}`;
    if (!this.indexes.has(index)) {
      this.indexes.set(index, Map.groupBy(this.kinds.get(kind).values(), (item) => item[field]));
    }
    return this.indexes.get(index).get(id) ?? [];
  }

  async load() {
    this.waiting = [];
    const waiting = this.waiting;
    try {
      const read = (kind) => (kind === "events" ? this.session.newest("/v1/events") : this.session.all(`/v1/${kind}`));
      const lists = await Promise.all(KINDS.map(async (kind) => [kind, await read(kind)]));
      for (const [kind, { items, more }] of lists) {
        this.kinds.set(kind, new Map(items.map((item) => [item.id, item])));
        if (more) this.cut.add(kind);
        else this.cut.delete(kind);
      }
    } catch (error) {
      this.told.failed(error);
      // From the beginning, a moment later.
      this.live.complete = null;
      this.live.connection?.abort();
      return;
    }
    if (this.waiting !== waiting) return;
    this.waiting = null;
    this.loaded = true;
    for (const [type, change] of waiting) this.take(type, change);
    this.indexes.clear();
    this.soon();
  }

  take(type, change) {
    // What changes while the lists are read comes after them: a change has the whole resource.
    if (this.waiting) return void this.waiting.push([type, change]);
    const items = this.kinds.get(change.kind);
    if (!items) return;
    if (type === "delete") items.delete(change.id);
    else if (type === "put" && change.resource) items.set(change.id, change.resource);
    if (change.kind === "events" && items.size > EVENTS) items.delete(items.keys().next().value);
    for (const index of this.indexes.keys()) {
      if (index.startsWith(`${change.kind}/`)) this.indexes.delete(index);
    }
    this.soon();
  }

  soon() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.told.changed();
    }, EVERY);
  }
}
