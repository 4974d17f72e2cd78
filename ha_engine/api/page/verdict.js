// One sentence for the whole group: what a person on call has to know first. Pure.

import {heirOf} from './group.js';
import {list, seconds} from './words.js';

/**
 * `title` and `text` change only when something happened, since they are read aloud; `detail` may
 * count. `level` is good, busy or failing (they end by themselves), warn, bad
 * or dark.
 *
 * @returns {{level: string, title: string, text: string, detail: string}}
 */
export function verdictOf(group) {
  const [level, title, text, detail = ''] = group.dark
    ? dark(group)
    : group.active
      ? led(group)
      : unled(group);
  return {level, title, text, detail};
}

function dark(group) {
  const since = Math.min(...group.members.map((member) => member.silentSeconds ?? Infinity));
  return [
    'dark',
    'No node answers this browser',
    'What stands below is what was heard last. Either both nodes are down, or this browser is cut off from them.',
    `Last heard ${seconds(since)} ago; asking again each second.`,
  ];
}

// -- somebody acts ---------------------------------------------------------------------------------

function led(group) {
  const {active} = group;
  if (active.role === 'promoting')
    return ['busy', `${active.name} is taking over`, `${active.reason}.`];
  if (active.suspended) return suspended(active);
  const heir = active.status?.handover_to;
  if (heir)
    return [
      'busy',
      `Switching over to ${heir}`,
      `${active.name} takes no more events and hands over what it has.`,
    ];
  if (group.members.length === 1) {
    return [
      'good',
      `${active.name} is active`,
      'A group of one node: no other takes over when it dies.',
    ];
  }
  return group.isProtected ? guarded(group) : alone(group);
}

function suspended(active) {
  return [
    'bad',
    `${active.name} is active, but suspended`,
    'Its lease could not be renewed in time. It takes no events and publishes nothing until the database answers or its peer promises to wait.',
  ];
}

function guarded({active, members, lease}) {
  const others = members.filter(
    (member) => member !== active && lease?.in_sync.some(({node}) => node === member.name),
  );
  const names = list(others.map((member) => member.name));
  if (lease?.paused) {
    return [
      'warn',
      'Failover is paused',
      `${active.name} is active, ${names} in sync, and nobody takes over until failover is resumed.`,
    ];
  }
  if (!others.some((member) => member.answers)) {
    return [
      'warn',
      `${names} does not answer`,
      `${active.name} is active, and holds acks back until ${names} answers or is no longer in sync.`,
    ];
  }
  if (others.some((member) => member.warm)) {
    return [
      'good',
      'Protected',
      `${active.name} is active; ${names} is in sync and warm, and takes over by itself.`,
    ];
  }
  return [
    'warn',
    'Protected, not warm',
    `${active.name} is active. All it acks is on ${names} too, but a takeover would wait there until Spark has caught up.`,
  ];
}

function alone({active, members}) {
  const silent = members.filter((member) => !member.answers).map((member) => member.name);
  const joining = members
    .filter((member) => member.answers && member !== active)
    .map((member) => member.name);
  const why = [
    silent.length && `${list(silent)} does not answer`,
    joining.length && `${list(joining)} is not in sync yet`,
  ];
  return [
    'warn',
    'Not protected',
    `${active.name} goes on alone: ${why.filter(Boolean).join('; ')}. What it acks now is on one disk.`,
  ];
}

// -- nobody acts -----------------------------------------------------------------------------------

function unled(group) {
  const {lease, members} = group;
  if (members.every((member) => !member.answers || member.role === 'starting')) {
    return ['busy', 'Starting', 'A node reads its journal.'];
  }
  if (lease?.paused)
    return [
      'bad',
      'Nobody is active, and failover is paused',
      'No node takes over until an operator resumes failover. Producers get 503 and try again.',
    ];
  const heir = heirOf(group);
  return heir ? failingOver(group, heir) : waiting(group);
}

function failingOver({lease, members}, heir) {
  const holder = members.find((member) => member.name === lease?.holder);
  const left = heir.status?.lease.takeover_seconds;
  const detail =
    left == null
      ? ''
      : left > 0
        ? `At the latest in ${seconds(left)}. Producers get 503 and try again.`
        : 'Now.';
  if (!holder)
    return ['busy', 'Handing over', `The lease is released; ${heir.name} takes it.`, detail];
  const silent = holder.answers ? 'is no longer the active' : 'held the lease and is silent';
  return [
    'failing',
    `Failing over to ${heir.name}`,
    `${holder.name} ${silent}; ${heir.name} takes over when the lease has run out.`,
    detail,
  ];
}

function waiting({lease, members}) {
  const holder = lease?.holder;
  const gone = holder && !members.find((member) => member.name === holder)?.answers;
  const first = gone
    ? `${holder} was active and does not answer, and no other node has all that it acked. Start ${holder} again.`
    : 'No node can take over now; each says below what it waits for.';
  return [
    'bad',
    'Nobody is active',
    `${first} Producers get 503 and try again; nothing is lost meanwhile.`,
  ];
}
