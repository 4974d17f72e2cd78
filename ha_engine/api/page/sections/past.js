// What is kept and what has been: snapshots, and who was active when.

import {facts, h} from '../dom.js';
import {leadingStatus} from '../group.js';
import {bytes, count, moment, NONE, plural, seconds} from '../words.js';

export function snapshots(group) {
  const seen = leadingStatus(group).snapshot;
  const {newest, taking} = seen;
  return [
    h('h2', {}, 'Snapshots'),
    facts({
      newest: newest
        ? `at ${newest.epoch}.${newest.sequence}, taken by ${newest.taken_by}`
        : 'none yet',
      age: newest && seconds(seen.age_seconds),
      size: newest && `${bytes(newest.bytes_total)}, of which new ${bytes(newest.bytes_new)}`,
      kept: plural(seen.revisions, 'revision'),
      state: taking
        ? `storing ${bytes(taking.bytes_done)} of ${bytes(taking.bytes_total)}`
        : seen.state,
      'no newer one': seen.why_not,
    }),
  ];
}

export function history({history: seen}) {
  const changes = seen?.changes ?? [];
  return [
    h('h2', {}, 'Changes of the active'),
    seen?.error && h('p', {class: 'reason'}, `Cannot read the history now: ${seen.error}`),
    h(
      'div',
      {
        class: 'scroll',
        role: 'region',
        tabindex: '0',
        'aria-label': 'Table of the changes, newest first',
      },
      h(
        'table',
        {},
        h(
          'thead',
          {},
          h(
            'tr',
            {},
            ['when', 'active', 'outage', 'epoch', 'reason'].map((name) =>
              h('th', {scope: 'col', class: name === 'epoch' ? name : null}, name),
            ),
          ),
        ),
        h('tbody', {}, changes.map(line)),
      ),
    ),
  ];
}

function line({at, node, epoch, reason, outage_seconds: outage}) {
  return h(
    'tr',
    {},
    h('td', {}, h('time', {datetime: at}, moment(at))),
    h('th', {scope: 'row'}, node ?? 'none'),
    h('td', {class: 'outage'}, outage == null ? NONE : seconds(outage)),
    h('td', {class: 'epoch'}, count(epoch)),
    h('td', {class: 'why'}, reason ?? NONE),
  );
}
