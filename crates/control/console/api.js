// Speaks to the server's API. The API key is kept in the tab's sessionStorage and nowhere else: it is
// gone with the tab, and no cookie carries it.

const KEY = "lanekeeper.key";
const ORGANIZATION = "lanekeeper.organization";
/** Most in a page of a list, and most pages of it: what a table of a browser can bear. */
const PAGE = 1000;
const PAGES = 10;

/** What the server refused: `detail` says what was wrong and what to do (RFC 9457). */
export class Problem extends Error {
  constructor(status, body, text) {
    super(body?.detail ?? text);
    this.status = status;
    this.title = body?.title ?? "The call failed";
  }
}

/** The call as it failed: no answer, or one that is no JSON. */
async function problem(response) {
  const body = await response.json().catch(() => null);
  return new Problem(response.status, body, `the server answered ${response.status} ${response.statusText}`);
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Somebody who has signed in. */
export class Session {
  constructor(key, organization) {
    this.key = key;
    this.organization = organization;
    this.role = null;
    this.ended = () => {};
  }

  /** As whom this tab was signed in before, if it was. */
  static kept() {
    const key = sessionStorage.getItem(KEY);
    return key ? new Session(key, sessionStorage.getItem(ORGANIZATION)) : null;
  }

  /** Ask who the key is; keep it if it is somebody's. */
  async open() {
    let who;
    try {
      who = await this.call("GET", "/v1/whoami");
    } catch (error) {
      // An organization that is there no more must not keep its operator out.
      if (error.status !== 404 || !this.organization) throw error;
      this.organization = null;
      who = await this.call("GET", "/v1/whoami");
    }
    this.role = who.role;
    this.organization = who.organization;
    sessionStorage.setItem(KEY, this.key);
    sessionStorage.setItem(ORGANIZATION, this.organization);
  }

  close() {
    sessionStorage.removeItem(KEY);
    sessionStorage.removeItem(ORGANIZATION);
  }

  get operator() {
    return this.role === "operator";
  }

  /** Whether the key may change anything; the server decides, this only spares a vain attempt. */
  get changes() {
    return this.role !== "reader";
  }

  headers(more) {
    const headers = { authorization: `Bearer ${this.key}`, ...more };
    if (this.organization) headers["lanekeeper-organization"] = this.organization;
    return headers;
  }

  /** One call; gives back its JSON, or throws a Problem. `once` makes it one that may be repeated. */
  async call(method, path, { body, once } = {}) {
    const more = {};
    if (body !== undefined) more["content-type"] = "application/json";
    if (once) more["idempotency-key"] = once;
    const request = { method, headers: this.headers(more), body: body === undefined ? undefined : JSON.stringify(body) };
    for (let attempt = 1; ; attempt++) {
      let response;
      try {
        response = await fetch(path, request);
      } catch {
        throw new Problem(0, null, "the server cannot be reached; try again in a moment");
      }
      if (response.ok) return response.status === 204 ? null : response.json();
      if (response.status === 429 && method === "GET" && attempt < 5) {
        await pause(500 * attempt);
        continue;
      }
      const refused = await problem(response);
      // While signing in there is nobody to be signed out.
      if (response.status === 401 && this.role) this.ended(refused.message);
      throw refused;
    }
  }

  /** A whole list, page by page. `more` says whether there is more than is given back. */
  async all(path) {
    const items = [];
    let after = "";
    for (let page = 0; page < PAGES; page++) {
      const got = await this.call("GET", `${path}?limit=${PAGE}${after}`);
      items.push(...got.items);
      if (got.next === undefined) return { items, more: false };
      after = `&after=${encodeURIComponent(got.next)}`;
    }
    return { items, more: true };
  }

  /** The newest of a list, at most a page. Lists go from the oldest; ids rise, so it is looked for the
      id after which a page is the last one. */
  async newest(path) {
    const page = (after) => this.call("GET", `${path}?limit=${PAGE}&after=${after}`);
    let low = 0;
    let got = await page(low);
    if (got.next === undefined) return { items: got.items, more: false };
    let step = PAGE;
    let high = null;
    while (high === null || high - low > 1) {
      const middle = high === null ? low + step : Math.floor((low + high) / 2);
      const tried = await page(middle);
      if (tried.next !== undefined) {
        low = middle;
        step *= 2;
      } else if (tried.items.length >= PAGE / 10) {
        return { items: tried.items, more: true };
      } else {
        high = middle;
        got = tried;
      }
    }
    return { items: got.items, more: true };
  }
}
