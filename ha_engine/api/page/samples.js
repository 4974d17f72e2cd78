// What the page has seen since it was opened, a sample a second: for charts and rates, and for how
// long a sink is behind.

const KEPT_SECONDS = 300;

/** When a number that only grows reached which value: so a distance becomes a time. */
class Timeline {
  #seen = [];

  note(at, value) {
    const newest = this.#seen.at(-1);
    if (newest && value < newest.value) this.#seen = []; // another history
    if (newest?.value !== value) this.#seen.push({at, value});
    if (this.#seen.length > 2 * KEPT_SECONDS) this.#seen.shift();
  }

  /** Seconds since what lies behind `reached` came to be, 0 when nothing does. */
  secondsBehind(reached, now) {
    const missing = this.#seen.find(({value}) => value > reached);
    return missing ? (now - missing.at) / 1000 : 0;
  }
}

export class Samples {
  /** @type {{at: number, epoch: ?number, events: ?number, p50: ?number, p99: ?number,
   *   waiting: ?number, lag: ?number, batches: Object<string, number>}[]} */
  points = [];
  #marks = new Map();

  take(group, now) {
    const {active} = group;
    const status = active?.role === 'active' ? active.status : null;
    if (status) this.#remember(status, now);
    this.points.push({at: now, ...(status ? sampleOf(active, group) : GAP)});
    while (now - this.points[0].at > KEPT_SECONDS * 1000) this.points.shift();
  }

  #remember(status, now) {
    for (const [query, {mark}] of Object.entries(status.queries)) {
      if (!this.#marks.has(query)) this.#marks.set(query, new Timeline());
      this.#marks.get(query).note(now, mark);
    }
  }

  /** How long ago the batch was marked that follows `through`, the last one in a sink. */
  sinkSeconds(query, through, now) {
    const marks = this.#marks.get(query);
    return marks && through !== null ? marks.secondsBehind(through, now) : null;
  }
}

const GAP = {
  epoch: null,
  events: null,
  p50: null,
  p99: null,
  waiting: null,
  lag: null,
  batches: {},
};

function sampleOf(active, group) {
  const {status, heard} = active;
  const lags = group.members.map((member) => member.told?.lag_records).filter((lag) => lag != null);
  const queries = Object.entries(status.queries);
  return {
    epoch: status.epoch,
    events: rateOf(heard, (of) => of.receive.accepted_events),
    p50: status.receive.ack_ms?.p50 ?? null,
    p99: status.receive.ack_ms?.p99 ?? null,
    waiting: status.receive.backlog_events,
    lag: group.members.length > 1 ? Math.max(0, ...lags) : null,
    batches: Object.fromEntries(
      queries.map(([name, query]) => [name, query.batch_duration_ms || null]),
    ),
  };
}

/** Per second, between the node's last two answers; null before there are two of one process. */
function rateOf(heard, counter) {
  const {before, status, answeredAt} = heard;
  if (!before || status.uptime_seconds < before.status.uptime_seconds) return null;
  return (1000 * Math.max(0, counter(status) - counter(before.status))) / (answeredAt - before.at);
}

/** Requests a second that a node sends back since too much waits. */
export function heldBack(heard) {
  return rateOf(heard, (status) => status.receive.rejected_requests.Backpressure ?? 0) ?? 0;
}
