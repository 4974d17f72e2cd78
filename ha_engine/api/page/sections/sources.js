// What the active pulls by itself: each source, where it stands and what it has put aside.

import {badge, facts, h} from '../dom.js';
import {leadingStatus} from '../group.js';
import {bytes, count, moment, plural, seconds} from '../words.js';

const STATES = {reading: 'good', idle: 'good', paused: 'busy', late: 'busy', stopped: 'calm'};

/** Nothing where the application has none. */
export function sources(group) {
  const streams = Object.entries(leadingStatus(group).sources);
  const cards = streams.flatMap(([stream, named]) =>
    Object.entries(named).map(([name, seen]) => source(`${stream}/${name}`, seen)),
  );
  return cards.length === 0 ? [] : [h('h2', {}, 'Sources'), h('div', {class: 'queries'}, cards)];
}

/** What the source knows to wait: events, bytes, and the age of the next one. */
function unread(seen) {
  const known = [
    seen.backlog_events == null ? null : plural(seen.backlog_events, 'event'),
    seen.backlog_bytes == null ? null : bytes(seen.backlog_bytes),
    seen.backlog_seconds ? `the next ${seconds(seen.backlog_seconds)} old` : null,
  ];
  return known.filter((one) => one !== null).join(', ') || null;
}

function source(name, seen) {
  const level = STATES[seen.state] ?? 'bad';
  return h(
    'article',
    {class: 'query', 'data-level': level},
    h('header', {}, h('h3', {}, name), badge(level, seen.state)),
    seen.error && h('p', {class: 'reason'}, `${seen.error} (since ${moment(1000 * seen.since)})`),
    facts({
      type: seen.type,
      journalled: `${plural(seen.rows, 'row')} in ${plural(seen.batches, 'batch')}`,
      'dead letters': seen.rejected ? count(seen.rejected) : null,
      unread: unread(seen),
    }),
    h('p', {class: 'from'}, `Continues at ${seen.offset ?? 'its beginning'}`),
    seen.rejected > 0 && h('p', {class: 'from'}, `Dead letters are in ${seen.dead_letters}`),
  );
}
