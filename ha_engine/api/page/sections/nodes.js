// A card for each node: what it is, what it lacks, and how far it is when it comes back.

import {badge, facts, h} from '../dom.js';
import {successorOf} from '../group.js';
import {age, brief, bytes, count, NONE, plural, seconds, sentence, yes} from '../words.js';

const LEVELS = {active: 'good', passive: 'calm', backup: 'calm', stopped: 'bad'};
const STAGES = ['comparing', 'snapshot', 'journal', 'starting Spark', 'batches'];

export function nodeCards(group) {
  const successor = group.active ? null : successorOf(group);
  return group.members.map((member) => card(member, group, member === successor));
}

function card(member, group, isHeir) {
  const level = levelOf(member, isHeir);
  return h(
    'article',
    {class: 'node', 'data-level': level, 'data-node': member.name},
    h('header', {}, h('h2', {}, member.name), badge(level, roleOf(member, isHeir))),
    h('p', {class: 'why'}, whyOf(member, group)),
    rejoin(member, group),
    member.answers && known(member, group),
    h('p', {class: 'from'}, source(member, group)),
  );
}

function levelOf(member, isHeir) {
  if (!member.answers) return member.restarts ? 'busy' : 'gone';
  if (member.suspended) return 'bad';
  return isHeir ? 'failing' : (LEVELS[member.role] ?? 'busy');
}

function roleOf(member, isHeir) {
  if (!member.answers) return member.restarts ? 'restarts' : 'no answer';
  if (member.suspended) return `${member.role}, suspended`;
  return isHeir ? `${member.role}, takes over` : member.role;
}

function whyOf(member, group) {
  if (member.answers) return member.reason;
  if (member.restarts) return `It restarts with deployment ${group.rollout.deployment.number}.`;
  const was =
    member.last &&
    `It was ${member.last.role} when it last answered, ${seconds(member.silentSeconds)} ago.`;
  const holds = group.lease?.holder === member.name && 'It still holds the lease.';
  return (
    [was, holds, member.trouble && sentence(member.trouble)].filter(Boolean).join(' ') ||
    'No report for some seconds.'
  );
}

function known(member, group) {
  const {status, told, role} = member;
  const journal = told?.journal ?? journalOf(status);
  const single = group.members.length === 1;
  return facts({
    epoch: role === 'active' ? count(status?.epoch ?? told.epoch) : null,
    'in sync': single ? null : yes(member.inSync),
    warm: yes(member.warm),
    protected: role === 'active' && !single ? yes(status?.protected ?? group.isProtected) : null,
    lag: role === 'active' ? null : lag(member, group),
    authority: role === 'active' && status ? authority(status.lease) : null,
    'may take over': role === 'active' || !status ? null : takeover(status.lease, group.active),
    application: member.application && applicationOf(member.application),
    version: member.version,
    journal: `${count(journal.durable)} durable, ${count(journal.committed)} committed`,
    Spark: status && spark(status.query_process, role),
    executors: status?.query_process.executors && executors(status.query_process.executors),
    database: status && (status.lease.database_answers === false ? 'does not answer' : 'answers'),
    room: member.disk_headroom_ok ? null : 'none for events',
    up: status && seconds(status.uptime_seconds),
    'restored from': status?.snapshot.restored && restored(status.snapshot.restored),
  });
}

function applicationOf({deployment, archive, digest, is_former: isFormer}) {
  if (archive === null) return `${isFormer ? 'former ' : ''}file of its config (${brief(digest)})`;
  const which = deployment === null ? 'former deployment' : `deployment ${deployment}`;
  return `${which} (${brief(archive)})`;
}

function journalOf({journal}) {
  return {
    last: journal.last_sequence,
    durable: journal.durable_sequence,
    committed: journal.committed_sequence,
  };
}

function lag(member, group) {
  const records = member.told?.lag_records;
  if (records == null) return NONE;
  const behind = group.active?.status?.peers[member.name]?.lag_seconds;
  return records ? `${plural(records, 'record')}, ${age(behind)}` : 'none';
}

/** What the query process does now, and since when; once it is up, that it runs. */
function spark({connected, step, step_seconds: since}, role) {
  if (role === 'backup' && !connected) return 'off until it is needed';
  if (connected && (step === null || step === 'ready')) return 'running';
  return step === null ? 'starting' : `${step} for ${seconds(since)}`;
}

function executors({live, wanted, master_connected: connected, application}) {
  return `${live} of ${wanted}, master ${connected ? 'connected' : 'not connected'}, ${application}`;
}

function restored({revision, position, seconds: took}) {
  return `snapshot ${revision}, at ${position}, in ${seconds(took)}`;
}

function authority(lease) {
  return lease.authority_seconds === null
    ? 'unlimited: no other node can acquire'
    : `${seconds(lease.authority_seconds)} without renewal`;
}

function takeover(lease, active) {
  if (lease.takeover_seconds === null) return 'no';
  const left = seconds(lease.takeover_seconds);
  return active ? `${left} after the last renewal` : `in ${left}`;
}

/** Who told what stands in the card. */
function source({name, home, url, heard, status, answers}, group) {
  const page = home
    ? `It ${answers ? 'serves' : 'served'} this page.`
    : url && answers && h('a', {href: url}, `Page of ${name}`);
  const asked = heard === null || heard.trouble !== null;
  if (!answers || status || !asked) return page;
  return [`Reported by ${group.teller.name}; this browser cannot reach it. `, page];
}

// -- on its way back -------------------------------------------------------------------------------

/** Stage after stage, the present one with what is done and to do. */
function rejoin(member, group) {
  const restoring = member.status?.snapshot.restoring;
  const lacks = member.told?.rejoin;
  const stage = restoring ? 'snapshot' : lacks?.stage;
  if (!stage) return null;
  const steps = stage === 'rebuild' ? ['rebuild'] : STAGES;
  const at = steps.indexOf(stage);
  return h(
    'div',
    {class: 'rejoin'},
    h(
      'ol',
      {'aria-label': `Steps until ${member.name} can take over`},
      steps.map((step, index) =>
        h('li', {'data-done': index < at, 'aria-current': index === at ? 'step' : null}, step),
      ),
    ),
    progress(stage, restoring, lacks, member, group),
  );
}

function progress(stage, restoring, lacks, member, group) {
  const [done, total, text] = amount(stage, restoring, lacks, member, group);
  const label = `${stage} of ${member.name}`;
  const bar = h('progress', {'aria-label': label, ...(total > 0 && {value: done, max: total})});
  return [bar, h('p', {}, text)];
}

function amount(stage, restoring, lacks, {told}, group) {
  if (restoring) {
    const {bytes_done: done, bytes_total: total} = restoring;
    return [done, total, `restoring a snapshot: ${bytes(done)} of ${bytes(total)}`];
  }
  if (stage === 'snapshot') return [0, 0, `restoring a snapshot: ${bytes(lacks.bytes)} to go`];
  const last = group.active?.told?.journal.last ?? told.journal.durable + lacks.records;
  if (stage === 'journal') {
    return [
      told.journal.durable,
      last,
      `record ${count(told.journal.durable)} of ${count(last)}: ${count(lacks.records)} to go`,
    ];
  }
  const text = `${plural(lacks.records, 'record')} and ${plural(lacks.batches, 'batch')} to go`;
  if (stage !== 'batches') return [0, 0, text];
  const done = Object.values(told.queries).reduce((sum, {batch}) => sum + batch, 0);
  return [done, done + lacks.batches, text];
}
