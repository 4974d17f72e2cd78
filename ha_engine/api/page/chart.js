// One small chart: lines over the last minutes, drawn as SVG, with its numbers as text.

import {h, svg} from './dom.js';

const WIDTH = 300;
const HEIGHT = 80;
const SPANS = [1, 2, 5];

/**
 * @param {string} title
 * @param {{name: string, of: function(object): ?number}[]} lines at most six
 * @param {object[]} points of Samples
 * @param {function(?number): string} words how a value is read
 */
export function chart(title, lines, points, now, words) {
  const drawn = lines.map(({name, of}, index) => ({
    name,
    index,
    values: points.map((point) => of(point) ?? null),
  }));
  const highest = Math.max(0, ...drawn.flatMap(({values}) => values));
  const top = ceiling(highest);
  const span = spanOf(points, now);
  const x = points.map(({at}) => WIDTH - ((now - at) / 1000 / (60 * span)) * WIDTH);
  const current = drawn.map(({name, values}) => `${name} ${words(values.at(-1))}`).join(', ');
  const label = `${title}: now ${current}; highest since ${span} min ${words(highest)}`;
  return h(
    'figure',
    {class: 'chart'},
    h('figcaption', {}, h('h3', {}, title), legend(drawn, words)),
    h(
      'div',
      {class: 'plot'},
      h('span', {class: 'top'}, words(top)),
      drawing(drawn, points, x, top, label),
    ),
    h(
      'p',
      {class: 'axis', 'aria-hidden': 'true'},
      h('span', {}, `${span} min ago`),
      h('span', {}, 'now'),
    ),
  );
}

/** Minutes that are shown: the page may have been opened just now. */
function spanOf(points, now) {
  const seen = points.length ? (now - points[0].at) / 60000 : 0;
  return SPANS.find((span) => span >= seen) ?? SPANS.at(-1);
}

function legend(drawn, words) {
  return h(
    'ul',
    {class: 'legend'},
    drawn.map(({name, index, values}) =>
      h('li', {'data-line': index}, `${name} `, h('b', {}, words(values.at(-1)))),
    ),
  );
}

function drawing(drawn, points, x, top, label) {
  return svg(
    'svg',
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: 'none',
      role: 'img',
      'aria-label': label,
    },
    svg('path', {class: 'grid', d: `M0 ${HEIGHT / 2}H${WIDTH}M0 0H${WIDTH}`}),
    svg('path', {class: 'change', d: changes(points, x)}),
    drawn.map(({index, values}) =>
      svg('path', {class: 'line', 'data-line': index, d: line(values, x, top)}),
    ),
  );
}

/** Broken where a value is not known. */
function line(values, x, top) {
  let pen = 'M';
  return values
    .map((value, index) => {
      if (value === null) {
        pen = 'M';
        return '';
      }
      const step = `${pen}${x[index].toFixed(1)} ${(HEIGHT * (1 - value / top)).toFixed(1)}`;
      pen = 'L';
      return step;
    })
    .join('');
}

/** A vertical line wherever another epoch began. */
function changes(points, x) {
  let epoch = null;
  return points
    .map((point, index) => {
      const changed = epoch !== null && point.epoch !== null && point.epoch !== epoch;
      epoch = point.epoch ?? epoch;
      return changed ? `M${x[index].toFixed(1)} 0V${HEIGHT}` : '';
    })
    .join('');
}

/** The next of 1, 2, 5, 10, 20, 50 ... */
function ceiling(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= value);
}
