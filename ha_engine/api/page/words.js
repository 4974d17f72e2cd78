// Numbers, times and names as people read them. Pure.

export const NONE = '–';

const WHOLE = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const SHORT = new Intl.NumberFormat('en', {notation: 'compact', maximumSignificantDigits: 3});
const DAY = new Intl.DateTimeFormat(undefined, {month: 'short', day: 'numeric'});
const TIME = new Intl.DateTimeFormat(undefined, {timeStyle: 'medium'});

/** 12,345, or a dash where it is not known. */
export function count(value) {
  return value == null ? NONE : WHOLE.format(value);
}

/** 12.3K: for where there is little room. */
export function short(value) {
  return value == null ? NONE : SHORT.format(value);
}

export function bytes(value) {
  if (value == null) return NONE;
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${unit && value < 100 ? value.toFixed(1) : WHOLE.format(value)} ${units[unit]}`;
}

export function milliseconds(value) {
  if (value == null) return NONE;
  return value < 1000
    ? `${value < 10 ? value.toFixed(1) : WHOLE.format(value)} ms`
    : seconds(value / 1000);
}

/** 0.36 s, 12 s, 3 min 5 s, 2 h 10 min, 4 d 3 h. */
export function seconds(value) {
  if (value == null) return NONE;
  if (value < 10) return `${value.toFixed(value < 1 ? 2 : 1)} s`;
  const whole = Math.round(value);
  for (const [size, unit, below, smaller] of [
    [86400, 'd', 3600, 'h'],
    [3600, 'h', 60, 'min'],
    [60, 'min', 1, 's'],
  ]) {
    if (whole >= size)
      return `${Math.floor(whole / size)} ${unit} ${Math.floor((whole % size) / below)} ${smaller}`;
  }
  return `${whole} s`;
}

/** Of something sampled once a second. */
export function age(value) {
  return value == null ? NONE : value < 1 ? 'under 1 s' : seconds(value);
}

/** A time of events, which know no reader's time zone. */
export function utc(iso) {
  return iso.replace('T', ' ').replace(/(\.0+)?Z$/, ' UTC');
}

/** The reader's own time of day, with the date unless it is today. */
export function moment(iso) {
  const at = new Date(iso);
  const today = at.toDateString() === new Date().toDateString();
  return today ? TIME.format(at) : `${DAY.format(at)}, ${TIME.format(at)}`;
}

/** The beginning of a digest, which is enough to tell it from others. */
export function brief(digest) {
  return digest.slice(0, 8);
}

/** Node-a is, node-a and node-b are. */
export function verb(names, one, many) {
  return `${list(names)} ${names.length === 1 ? one : many}`;
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : noun.endsWith('ch') ? 'es' : 's'}`;
}

export function yes(value) {
  return value == null ? NONE : value ? 'yes' : 'no';
}

/** a, b and c. */
export function list(names) {
  return names.length < 2 ? names.join() : `${names.slice(0, -1).join(', ')} and ${names.at(-1)}`;
}

/** A reason as a node gives it, with a capital and a full stop. */
export function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${text.endsWith('.') ? '' : '.'}`;
}
