// Each query: its batches on both nodes, what waits for it, its sinks, and its shadow.

import {badge, facts, h} from '../dom.js';
import {leadingStatus} from '../group.js';
import {age, bytes, count, milliseconds, moment, plural, utc} from '../words.js';

const STATES = {running: 'good', standby: 'calm', waiting: 'busy', failed: 'bad'};
const SINKS = {publishing: 'good', claiming: 'busy', stopped: 'calm'};

export function queries(group, samples, now) {
  const status = leadingStatus(group);
  const names = Object.keys(status.queries);
  return [
    h('h2', {}, 'Queries'),
    names.length === 0 && h('p', {}, 'The application has no queries.'),
    h(
      'div',
      {class: 'queries'},
      names.map((name) => query(name, status.queries[name], group, samples, now)),
    ),
  ];
}

function query(name, seen, group, samples, now) {
  return h(
    'article',
    {class: 'query', 'data-level': STATES[seen.state]},
    h(
      'header',
      {},
      h('h3', {}, name),
      badge(STATES[seen.state], seen.state === 'failed' ? 'FAILED' : seen.state),
    ),
    seen.reason &&
      h(
        'p',
        {class: 'reason'},
        seen.failed_batch ? `Batch ${seen.failed_batch}: ${seen.reason}` : seen.reason,
      ),
    facts({
      batch: batches(name, seen, group),
      'newest batch': seen.batch_duration_ms
        ? `${plural(seen.batch_rows, 'row')} in ${milliseconds(seen.batch_duration_ms)}`
        : 'none yet',
      waiting: plural(seen.backlog_events, 'event'),
      outbox: `${plural(seen.outbox_batches, 'batch')}, ${bytes(seen.outbox_bytes)}`,
      state: state(seen),
      watermark: seen.watermark && utc(seen.watermark),
      'too late': seen.late_rows ? plural(seen.late_rows, 'row') : null,
      restarts: seen.restarts || null,
    }),
    h(
      'ul',
      {class: 'sinks', 'aria-label': `Sinks of ${name}`},
      Object.keys(seen.sinks).map((sink) => sinkLine(name, sink, seen, samples, now)),
    ),
    shadow(name, group),
  );
}

/** The changed version that runs beside a query, on each node that this page can ask. */
export function shadow(query, group) {
  const told = group.members.filter(({status}) => status?.shadow?.query === query);
  if (told.length === 0) return null;
  const {name} = told[0].status.shadow;
  return h(
    'section',
    {class: 'shadow', 'aria-label': `Shadow ${name}`},
    h('h4', {}, `Shadow ${name}`),
    h('ul', {}, told.map(shadowOnNode)),
    h(
      'p',
      {class: 'from'},
      `No sink gets its output. See what differs with ha-engine query compare ${query}, and end it with query promote or query discard.`,
    ),
  );
}

function shadowOnNode({name, status}) {
  const {state, reason, batch, behind_batches: behind} = status.shadow;
  const words = behind ? `${plural(behind, 'batch')} behind the query` : 'level with the query';
  return h(
    'li',
    {},
    h('b', {}, name),
    badge(STATES[state], state === 'failed' ? 'FAILED' : state),
    h('span', {}, `batch ${count(batch)}, ${words}`),
    reason && h('p', {class: 'reason'}, reason),
  );
}

function state({state_rows: rows, state_bytes: size, state_partitions: partitions, skew}) {
  const where = partitions ? ` in ${plural(partitions, 'partition')}` : '';
  const most = skew && partitions > 1 ? `, the busiest with ${skew.toFixed(1)} times the mean` : '';
  return `${plural(rows, 'row')}${where}, ${bytes(size)}${most}`;
}

/** How far each node is that runs the query; they run the same batches. */
function batches(name, seen, group) {
  const told = group.members.filter((member) => {
    const state = member.told?.queries[name]?.state;
    return state && state !== 'standby';
  });
  if (told.length < 2) return `${count(seen.batch)} of ${count(seen.mark)}`;
  return told
    .map((member) => `${count(member.told.queries[name].batch)} on ${member.name}`)
    .join(', ');
}

/** A node that publishes nothing itself knows from its journal what is published. */
function sinkLine(query, name, seen, samples, now) {
  const {state, backlog, error, since, dead_letters: dead, ...sink} = seen.sinks[name];
  const through = sink.published_through ?? seen.published[name] ?? null;
  return h(
    'li',
    {},
    h('b', {}, name),
    badge(SINKS[state] ?? 'bad', state),
    h('span', {}, `through batch ${count(through)}`),
    h(
      'span',
      {},
      backlog ? behind(backlog, samples.sinkSeconds(query, through, now)) : 'nothing waits',
    ),
    dead > 0 && h('span', {class: 'dead'}, plural(dead, 'dead letter')),
    error && h('p', {class: 'reason'}, `${error} (since ${moment(1000 * since)})`),
  );
}

function behind(batches, since) {
  return `${plural(batches, 'batch')} behind${since === null ? '' : `, ${age(since)}`}`;
}
