// Each query: its batches on both nodes, what waits for it, and its sinks.

import {badge, facts, h} from '../dom.js';
import {leadingStatus} from '../group.js';
import {age, bytes, count, milliseconds, moment, NONE, plural, utc} from '../words.js';

const STATES = {running: 'good', waiting: 'busy', failed: 'bad'};
const SINKS = {publishing: 'good', claiming: 'busy', stopped: 'calm'};

export function queries(group, samples, now) {
  const status = leadingStatus(group);
  const names = Object.keys(status.queries);
  return [
    h('h2', {}, 'Queries'),
    names.length === 0 && h('p', {}, 'The application has none.'),
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
      state: `${plural(seen.state_rows, 'row')}, ${bytes(seen.state_bytes)}`,
      watermark: seen.watermark && utc(seen.watermark),
      'too late': seen.dropped_by_watermark ? plural(seen.dropped_by_watermark, 'row') : null,
      restarts: seen.restarts || null,
    }),
    h(
      'ul',
      {class: 'sinks', 'aria-label': `Sinks of ${name}`},
      Object.entries(seen.sinks).map(([sink, of]) => sinkLine(name, sink, of, samples, now)),
    ),
  );
}

/** Both nodes run the same batches: how far each is. */
function batches(name, seen, group) {
  const told = group.members.filter((member) => member.told?.queries[name]);
  if (told.length < 2) return `${count(seen.batch)} of ${count(seen.mark)}`;
  return told
    .map((member) => `${count(member.told.queries[name].batch)} on ${member.name}`)
    .join(', ');
}

function sinkLine(query, name, sink, samples, now) {
  const late = sink.backlog ? samples.sinkSeconds(query, sink, now) : 0;
  const backlog = sink.backlog
    ? `${plural(sink.backlog, 'batch')} behind${`, ${age(late)}`}`
    : 'nothing waits';
  return h(
    'li',
    {},
    h('b', {}, name),
    badge(SINKS[sink.state] ?? 'bad', sink.state),
    h(
      'span',
      {},
      `through batch ${sink.published_through == null ? NONE : count(sink.published_through)}`,
    ),
    h('span', {}, backlog),
    sink.dead_letters > 0 && h('span', {class: 'dead'}, plural(sink.dead_letters, 'dead letter')),
    sink.error && h('p', {class: 'reason'}, `${sink.error} (since ${moment(1000 * sink.since)})`),
  );
}
