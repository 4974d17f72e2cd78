// Throughput, latency and lags of the last five minutes, as the active told them.

import {chart} from '../chart.js';
import {h} from '../dom.js';
import {milliseconds, NONE, short} from '../words.js';

const QUERIES_MAX = 6;
const PER_SECOND = (value) => (value == null ? NONE : `${short(value)}/s`);

export function charts(group, points, now) {
  const queries = [...new Set(points.flatMap(({batches}) => Object.keys(batches)))].slice(
    0,
    QUERIES_MAX,
  );
  const alone = group.members.length === 1;
  const waiting = [{name: 'events for a batch', of: (point) => point.waiting}];
  if (!alone) waiting.push({name: 'records for the passive', of: (point) => point.lag});
  return [
    h('h2', {}, 'The last minutes'),
    h(
      'div',
      {class: 'charts'},
      chart(
        'Events in',
        [{name: 'accepted', of: (point) => point.events}],
        points,
        now,
        PER_SECOND,
      ),
      chart(
        'Request to ack',
        [
          {name: 'p50', of: (point) => point.p50},
          {name: 'p99', of: (point) => point.p99},
        ],
        points,
        now,
        milliseconds,
      ),
      chart(
        'Micro-batch',
        queries.map((name) => ({name, of: ({batches}) => batches[name]})),
        points,
        now,
        milliseconds,
      ),
      chart('Waiting', waiting, points, now, short),
    ),
  ];
}
