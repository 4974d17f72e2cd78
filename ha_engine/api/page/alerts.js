// What is wrong or worth knowing beside the verdict, worst first. Pure.
//
// Numbers that count up by themselves stay out of the texts, since these are read aloud when they
// change.

import {leadingStatus} from './group.js';
import {heldBack} from './samples.js';
import {list, moment, plural, sentence} from './words.js';

const SNAPSHOT_SECONDS_MAX = 3600;
const LATELY_MS = 15 * 60 * 1000;
const ORDER = ['bad', 'warn', 'info'];
const BROKEN_SINKS = ['unavailable', 'refused', 'fenced'];

/** `runbook` names a paragraph of docs/RUNBOOK.md; `on` the node with which the title ends. */
const of = (level) => (title, text, runbook, on) => ({level, title, text, runbook, on});
const bad = of('bad');
const warn = of('warn');
const info = of('info');

/** @returns {{level: string, title: string, text: string, runbook?: string}[]} */
export function alertsOf(group) {
  const status = leadingStatus(group);
  const alerts = [
    ...group.members.flatMap((member) => [...ofMember(member, group), ...ofItsQueries(member), ...ofItsShadow(member)]),
    ...ofSinks(status),
    ...ofSnapshots(status.snapshot),
    ...ofStrangers(group.unknown_peers),
    ...ofTheDeployment(group),
    ...ofVersions(group),
    ...ofTheLastChange(group),
  ];
  return together(alerts).sort((a, b) => ORDER.indexOf(a.level) - ORDER.indexOf(b.level));
}

/** What is the same on several nodes is said once, with all their names. */
function together(alerts) {
  const alike = new Map();
  for (const alert of alerts) {
    const key = `${alert.title}: ${alert.text}`;
    alike.set(key, [...(alike.get(key) ?? []), alert]);
  }
  return [...alike.values()].map((same) => {
    const nodes = list(same.map(({on}) => on).filter(Boolean));
    return {...same[0], title: `${same[0].title} ${nodes}`.trim()};
  });
}

function* ofMember(member, group) {
  const {name, status, told, trouble} = member;
  const mustAnswer = !group.dark && !member.restarts;
  if (!member.answers && mustAnswer) {
    const text = sentence(trouble ?? 'no report for some seconds');
    yield bad(`${name} does not answer`, text, 'HaEngineNodeDown');
  }
  if (status && !told && mustAnswer) {
    const text = sentence(trouble ?? 'both answer this browser; the network between them is down');
    yield bad(`${group.teller.name} and ${name} have no link`, text);
  }
  if (member.disk_headroom_ok === false) {
    yield bad('No room for events on', 'Producers get 429.', 'HaEngineNoRoom', name);
  }
  if (status) yield* ofStatus(name, status, member.heard);
}

function* ofStatus(name, {role, lease, snapshot, query_process: spark}, heard) {
  if (lease.database_answers === false) {
    const text =
      'The active continues while the nodes have a link, but no node can take over or store a snapshot.';
    yield bad('The database does not answer', text, 'HaEngineDatabaseFails', name);
  }
  if (heldBack(heard) > 0) {
    const text = `More events arrive than ${name} can take. Producers get 429 and try again.`;
    yield warn('Producers must wait', text, 'HaEngineProducersHeldBack');
  }
  if (snapshot.restored?.skipped.length) {
    const newer = plural(snapshot.restored.skipped.length, 'newer one');
    yield warn(`${name} restored an older snapshot`, `${newer} could not be used.`);
  }
  if (!spark.connected && spark.last_death && role !== 'backup') {
    const now = spark.step ? ` Now: ${spark.step}.` : '';
    yield warn(`Spark restarts on ${name}`, `The last process ended: ${spark.last_death}.${now}`);
  }
  if (spark.executors) yield* ofExecutors(name, spark.executors);
}

function* ofExecutors(name, {live, wanted, master_connected: connected}) {
  const runbook = 'HaEngineExecutorsMissing';
  if (live < wanted) {
    yield warn('Executors are missing', `${live} of ${wanted} run.`, runbook, name);
  }
  if (!connected) {
    const text = 'The queries run on, but no executor starts.';
    yield warn('No master of the Spark cluster answers', text, runbook, name);
  }
}

function* ofItsQueries({name, status, told}) {
  for (const [query, seen] of Object.entries(status?.queries ?? told?.queries ?? {})) {
    if (seen.state !== 'failed') continue;
    const where = seen.failed_batch ? `Batch ${seen.failed_batch}: ` : '';
    const text = seen.reason ? where + seen.reason : `The status of ${name} shows the reason.`;
    yield bad(`Query ${query} is FAILED on`, text, 'HaEngineQueryFailed', name);
  }
  for (const [query, {differs}] of Object.entries(told?.queries ?? {})) {
    const title = `Batch ${differs} of ${query} has different output on ${name}`;
    const text = 'The sinks get the output of the active.';
    if (differs) yield bad(title, text, 'HaEngineDigestMismatch');
  }
}

function* ofItsShadow({name, status}) {
  const {shadow} = status ?? {};
  if (shadow?.state !== 'failed') return;
  const advice = `Discard it with ha-engine query discard ${shadow.query}.`;
  yield warn(`Shadow ${shadow.name} is FAILED on`, `${sentence(shadow.reason)} ${advice}`, null, name);
}

function* ofSinks({queries}) {
  for (const [query, {sinks}] of Object.entries(queries)) {
    for (const [name, {state, error, dead_letters: dead}] of Object.entries(sinks)) {
      if (BROKEN_SINKS.includes(state)) {
        yield bad(`Sink ${name} of ${query} is ${state}`, error ?? '', 'HaEngineSinkBehind');
      }
      if (dead) {
        const text = `The sink refused ${plural(dead, 'row')} since its node started.`;
        yield warn(`Dead letters of sink ${name} of ${query}`, text, 'HaEngineDeadLetters');
      }
    }
  }
}

function* ofSnapshots({age_seconds: age, why_not: why}) {
  if (why) yield warn('No newer snapshot', sentence(why), 'HaEngineSnapshotOld');
  else if (age > SNAPSHOT_SECONDS_MAX) {
    const text = 'Without new events, the active takes no newer one.';
    yield warn('The newest snapshot is over an hour old', text, 'HaEngineSnapshotOld');
  }
}

function* ofStrangers(unknown_peers) {
  for (const [name, why] of Object.entries(unknown_peers)) yield warn(`${name} is refused`, why);
}

function* ofTheDeployment({rollout}) {
  if (rollout?.state !== 'waiting') return;
  yield warn(`Deployment ${rollout.deployment.number} is not complete`, rollout.progress);
}

function* ofVersions({members}) {
  const known = members.filter(({version}) => version);
  if (new Set(known.map(({version}) => version)).size < 2) return;
  const text = list(known.map(({name, version}) => `${name} has ${version.replace(',', ' with')}`));
  yield info('The nodes have different versions', `${text}. docs/UPGRADE.md explains an upgrade.`);
}

function* ofTheLastChange({history, dark}) {
  const changes = history?.changes ?? [];
  const last = changes.findIndex(({node}) => node);
  const {node, at, previous_node: previous, reason: why} = changes[last] ?? {};
  const isFirst = !changes.slice(last + 1).some((change) => change.node);
  if (dark || isFirst || Date.now() - new Date(at) > LATELY_MS) return;
  // A release records its reason; the acquisition after it records only that there was a release.
  const reason = (previous ? why : changes[last + 1].reason) ?? 'no reason was recorded';
  yield info(`${node} became the active at ${moment(at)}`, sentence(reason), 'HaEngineFailedOver');
}
