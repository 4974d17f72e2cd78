// The group as one value, made from what each node says of itself and of the others. Pure.

const ACTING = ['active', 'promoting'];

/**
 * @typedef {object} Member one node of the group
 * @property {string} name
 * @property {boolean} home whether it serves this page
 * @property {?string} url of its own page, where it is known
 * @property {?object} status GET /v1/status, if it answered this browser in the last seconds
 * @property {?object} last its last answer, however old
 * @property {?number} silentSeconds since it last answered this browser; null if it never did
 * @property {?object} told what the teller's GET /v1/cluster has of it
 * @property {boolean} answers the browser or the teller
 * @property {?string} role null when it does not answer
 * @property {?string} version of the engine and of the sync protocol, where it is known
 * @property {?object} application that it runs, where it is known
 * @property {boolean} restarts with a deployment, so that it is away for some seconds
 */

/**
 * @param {{home: Heard, all: Heard[]}} nodes
 * @param {number} now of performance.now()
 */
export function groupOf(nodes, now) {
  const fresh = nodes.all.filter((heard) => heard.isFresh(now));
  const teller = tellerOf(fresh, nodes.home) ?? latest(nodes.all);
  if (!teller?.cluster) return null;
  const members = Object.entries(teller.cluster.nodes).map(([name, told]) =>
    memberOf(name, told, nodes, now, fresh.length > 0, teller.cluster.rollout),
  );
  const acting = members.filter((member) => ACTING.includes(member.role));
  return {
    name: teller.cluster.group,
    dark: fresh.length === 0,
    teller,
    home: members.find((member) => member.home) ?? null,
    isObserved: nodes.home === null,
    homeLost: nodes.home !== null && !nodes.home.isFresh(now),
    members,
    active: acting.sort((a, b) => epochOf(b) - epochOf(a))[0] ?? null,
    lease: teller.cluster.lease,
    isProtected: teller.cluster.protected,
    unknown_peers: teller.cluster.unknown_peers,
    rollout: teller.cluster.rollout ?? null,
    application: teller.application,
    history: teller.history,
  };
}

/** Who acts knows most, then the node that serves the page. */
function tellerOf(fresh, home) {
  const acting = fresh.filter((heard) => ACTING.includes(heard.status.role));
  acting.sort((a, b) => b.status.epoch - a.status.epoch);
  return acting[0] ?? (fresh.includes(home) ? home : fresh[0]);
}

function latest(all) {
  return all.filter((heard) => heard.cluster).sort((a, b) => b.answeredAt - a.answeredAt)[0];
}

function memberOf(name, told, nodes, now, lit, rollout) {
  const heard = nodes.home?.name === name ? nodes.home : nodes.peers.get(name);
  const status = heard?.isFresh(now) ? heard.status : null;
  const answers = lit && (status !== null || told.answers);
  const said = status ?? told;
  return {
    name,
    home: heard !== undefined && heard === nodes.home,
    url: nodes.home === null ? told.url : (heard?.base ?? null),
    heard: heard ?? null,
    status,
    last: heard?.status ?? null,
    silentSeconds: heard?.answeredAt == null ? null : (now - heard.answeredAt) / 1000,
    told: lit && told.answers ? told : null,
    trouble: told.refused ?? told.unreachable ?? heard?.trouble ?? null,
    answers,
    role: answers ? said.role : null,
    reason: answers ? said.reason : null,
    suspended: answers && said.suspended,
    inSync: answers ? (told.in_sync ?? status.in_sync) : null,
    warm: answers ? said.warm : null,
    disk_headroom_ok: answers ? said.disk_headroom_ok : null,
    version: answers ? versionOf(said) : null,
    // A node knows best what it runs, and the teller what it should run.
    application: answers ? (told.application ?? status?.application ?? null) : null,
    restarts: lit && Boolean(rollout?.restarting.includes(name)),
  };
}

/** An older node says less of itself, or nothing. */
function versionOf({version, protocol_min: low, protocol_max: high}) {
  if (version == null) return null;
  if (low == null) return version;
  return `${version}, sync protocol ${low === high ? low : `${low} to ${high}`}`;
}

function epochOf(member) {
  return member.status?.epoch ?? member.told.epoch;
}

/** Who may acquire by itself when the holder stays silent, as far as it is known. */
export function successorOf(group) {
  const {lease, members} = group;
  const others = members.filter(
    (member) => member.answers && member.inSync && member.name !== lease?.holder,
  );
  return others.find(({status}) => !status || status.lease.takeover_seconds !== null) ?? null;
}

/** The status that tells of queries and sinks as they are: the active's, else any node's. */
export function leadingStatus(group) {
  return group.active?.status ?? group.teller.status;
}
