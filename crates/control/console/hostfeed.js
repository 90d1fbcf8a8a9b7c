// A region's hosts, asked for again and again: what hosts have is no tenant's, and the watch does not
// tell it. NICs and VFs are asked for only of the hosts that are looked at, and only when something of
// the host is another.

/** How often all hosts of a small region are asked for, and of a large one, in milliseconds. */
const OFTEN = 2_000;
const SELDOM = 15_000;
const SMALL = 100;
/** Calls at a time. */
const AT_ONCE = 4;

/** What a host is, in a word. */
export function hostState(host) {
  if (!host.alive || host.closed === "lost") return "lost";
  return host.closed ? "draining" : "alive";
}

/** Follows a region's hosts until it is stopped. */
export class HostFeed {
  constructor(session, changed, failed) {
    this.session = session;
    this.changed = changed;
    this.failed = failed;
    this.hosts = [];
    this.more = false;
    this.loaded = false;
    this.region = null;
    this.details = new Map();
    this.timer = null;
    this.round = 0;
    this.asking = false;
  }

  follow(region) {
    if (region === this.region) return;
    this.region = region;
    this.hosts = [];
    this.loaded = false;
    this.details.clear();
    this.again();
  }

  stop() {
    clearTimeout(this.timer);
    this.round++;
  }

  path(host) {
    return `/v1/regions/${this.region}/hosts/${host}`;
  }

  async again() {
    clearTimeout(this.timer);
    const round = ++this.round;
    try {
      // A tab that nobody sees asks for nothing.
      if (!document.hidden || !this.loaded) {
        const { items, more } = await this.session.all(`/v1/regions/${this.region}/hosts`);
        if (round !== this.round) return;
        this.hosts = items;
        this.more = more;
        this.loaded = true;
        this.changed();
      }
    } catch (error) {
      if (round !== this.round) return;
      if (error.status) this.failed(error);
    }
    this.timer = setTimeout(() => this.again(), this.hosts.length > SMALL ? SELDOM : OFTEN);
  }

  /** NICs and VFs of these hosts, as far as they are known; what is not known or old is asked for. */
  look(hosts) {
    const sign = (host) => JSON.stringify([host.vfs, host.vfs_used, host.vms, host.alive, host.closed]);
    const old = hosts.filter((host) => this.details.get(host.name)?.sign !== sign(host));
    if (old.length && !this.asking) this.ask(old.map((host) => [host.name, sign(host)]));
    return new Map(hosts.map((host) => [host.name, this.details.get(host.name)]).filter(([, detail]) => detail));
  }

  async ask(waiting) {
    this.asking = true;
    const region = this.region;
    const work = async () => {
      for (let next = waiting.shift(); next; next = waiting.shift()) {
        const [host, sign] = next;
        const get = (what) => this.session.call("GET", `${this.path(host)}/${what}`).then((got) => got.items);
        const [nics, vfs] = await Promise.all([get("nics"), get("vfs")]);
        if (region === this.region) this.details.set(host, { sign, nics, vfs: Map.groupBy(vfs, (vf) => vf.nic) });
      }
    };
    try {
      await Promise.all(Array.from({ length: AT_ONCE }, work));
    } catch (error) {
      if (error.status && error.status !== 404) this.failed(error);
    }
    this.asking = false;
    if (region === this.region) this.changed();
  }
}
