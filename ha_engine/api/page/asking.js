// Asks nodes what they say, once a second each, and remembers the last answer.

const EVERY_MS = 1000;
const HIDDEN_EVERY_MS = 5000; // the tab is hidden, but its title shows the state
const ANSWER_MS_MAX = 2000;
const PAST_EVERY_MS = 15000;

/** An answer older than this is no news of a node any more. */
const FRESH_MS = 3500;

const DENIED = [401, 403];

class Denied extends Error {}

/** One node as this browser hears it. */
export class Heard {
  /**
   * @param {string} base the URL of its HTTP interface, with a slash at the end
   * @param {() => string} token to read with, or nothing
   * @param {(token: string) => void} taken told with which token it answered
   */
  constructor(base, token, taken = () => {}) {
    Object.assign(this, {base, token, taken});
    this.status = this.cluster = null;
    this.answeredAt = null; // of performance.now()
    this.before = null; // the answer before: {status, at}
    this.trouble = null; // why there is no answer, as a sentence
    this.denied = null; // {token} that it did not take, until it answers
    this.history = null; // {changes} or {error}
    this.application = null; // GET /v1/application, which an older node does not have
    this.pastAt = -Infinity; // when it was asked for both
    this.closed = false;
  }

  get name() {
    return this.status?.node ?? null;
  }

  /** Whether it answered when it was asked last, and that was just now. */
  isFresh(now) {
    return this.answeredAt !== null && this.trouble === null && now - this.answeredAt < FRESH_MS;
  }

  /** Asks until it is closed. */
  async listen() {
    while (!this.closed) {
      await this.#ask();
      await new Promise((resume) =>
        setTimeout(resume, document.hidden ? HIDDEN_EVERY_MS : EVERY_MS),
      );
    }
  }

  async #ask() {
    const token = this.token();
    try {
      const [status, cluster] = await Promise.all([
        this.#get('v1/status', token),
        this.#get('v1/cluster', token),
      ]);
      this.taken(token);
      if (this.status) this.before = {status: this.status, at: this.answeredAt};
      const changed = cluster.body.lease?.epoch !== this.cluster?.lease?.epoch;
      const age = Math.max(status.ageMs, cluster.ageMs);
      const trouble = age < FRESH_MS ? null : 'it does not answer the observer';
      const answeredAt = performance.now() - age;
      Object.assign(this, {status: status.body, cluster: cluster.body, answeredAt, trouble});
      this.denied = null;
      if (changed || performance.now() - this.pastAt > PAST_EVERY_MS) await this.#askPast();
    } catch (error) {
      this.trouble = sentence(error);
      if (error instanceof Denied) this.denied = {token};
    }
  }

  async #askPast() {
    this.pastAt = performance.now();
    try {
      this.application = (await this.#get('v1/application', this.token())).body;
    } catch {
      // Its last answer stays. The status of the node has what is most important of it.
    }
    try {
      this.history = {changes: (await this.#get('v1/history?limit=20', this.token())).body.history};
    } catch (error) {
      this.history = {changes: this.history?.changes, error: sentence(error)};
    }
  }

  async #get(path, token) {
    const answer = await fetch(this.base + path, {
      cache: 'no-store',
      redirect: 'error',
      headers: token ? {Authorization: `Bearer ${token}`} : {},
      signal: AbortSignal.timeout(ANSWER_MS_MAX),
    });
    const body = await answer.json();
    if (DENIED.includes(answer.status)) throw new Denied(body.error);
    if (!answer.ok) throw new Error(body.error ?? `${path} answered ${answer.status}`);
    // An observer says how old the answer of a node is.
    return {body, ageMs: 1000 * Number(answer.headers.get('Age') ?? 0)};
  }
}

/** The node that serves this page, and the peers at the URLs that it names. */
export class Nodes {
  constructor(base, reading) {
    this.reading = reading;
    this.home = new Heard(
      base,
      () => reading.token,
      (token) => (reading.taken = token),
    );
    this.peers = new Map();
    this.home.listen();
  }

  /** The one that asks for a token. */
  get first() {
    return this.home;
  }

  get all() {
    return [this.home, ...this.peers.values()];
  }

  /** A node that was named since the last time is heard from now on. */
  meetPeers() {
    const {cluster} = this.home;
    if (!cluster) return;
    for (const [name, {url}] of Object.entries(cluster.nodes)) {
      if (name !== cluster.node && /^https?:/.test(url)) this.#meet(name, `${url}/`);
    }
    for (const name of this.peers.keys()) if (!(name in cluster.nodes)) this.#part(name);
  }

  #meet(name, base) {
    const known = this.peers.get(name);
    if (known?.base === base) return;
    if (known) this.#part(name);
    const peer = new Heard(base, () => this.reading.taken);
    this.peers.set(name, peer);
    peer.listen();
  }

  #part(name) {
    this.peers.get(name).closed = true;
    this.peers.delete(name);
  }
}

/** The nodes as an observer last heard them. None of them serves this page. */
export class ObservedNodes {
  home = null;

  /** @param {string[]} names of the nodes that the observer watches */
  constructor(base, reading, names) {
    const heard = (name) =>
      new Heard(
        `${base}nodes/${encodeURIComponent(name)}/`,
        () => reading.token,
        (token) => (reading.taken = token),
      );
    this.peers = new Map(names.map((name) => [name, heard(name)]));
    for (const one of this.all) one.listen();
  }

  get first() {
    return this.all.find((heard) => heard.denied) ?? this.all[0];
  }

  get all() {
    return [...this.peers.values()];
  }

  meetPeers() {}
}

function sentence(error) {
  if (error.name === 'TimeoutError') return `no answer within ${ANSWER_MS_MAX / 1000} s`;
  return error instanceof TypeError ? 'this browser cannot reach it' : error.message;
}
