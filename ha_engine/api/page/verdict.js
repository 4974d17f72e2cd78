// One sentence for the whole group: what a person on call has to know first. Pure.

import {successorOf} from './group.js';
import {list, seconds, verb} from './words.js';

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
  const who = group.isObserved ? 'observer' : 'browser';
  return [
    'dark',
    `No node answers this ${who}`,
    `The page shows the last answers. Either all nodes are down, or this ${who} cannot reach them.`,
    `The last answer is ${seconds(since)} old. The page asks again each second.`,
  ];
}

// -- somebody acts ---------------------------------------------------------------------------------

function led(group) {
  const {active} = group;
  if (active.role === 'promoting')
    return ['busy', `${active.name} is taking over`, `${active.reason}.`];
  if (active.suspended) return suspended(active);
  if (group.rollout?.state === 'moving') return moving(group);
  const successor = active.status?.handover_to;
  if (successor)
    return [
      'busy',
      `Switching over to ${successor}`,
      `${active.name} takes no more events and hands the lease over.`,
    ];
  if (group.members.length === 1) {
    return [
      'good',
      `${active.name} is active`,
      'The group has one node, so no other takes over if it dies.',
    ];
  }
  return group.isProtected ? guarded(group) : alone(group);
}

function moving({rollout: {deployment, progress}, isProtected, members}) {
  const onOneDisk = !isProtected && members.length > 1;
  return [
    'busy',
    `Moving to deployment ${deployment.number}`,
    progress,
    onOneDisk ? 'Newly acked events are on one disk only until two nodes are in sync.' : '',
  ];
}

function suspended(active) {
  return [
    'bad',
    `${active.name} is active, but suspended`,
    'It could not renew its lease in time. It acks no events and publishes nothing until the database answers or a peer promises not to take over.',
  ];
}

function guarded({active, members, lease}) {
  const others = members.filter(
    (member) => member !== active && lease?.in_sync.some(({node}) => node === member.name),
  );
  const names = others.map((member) => member.name);
  if (lease?.paused) {
    return [
      'warn',
      'Failover is paused',
      `${active.name} is active, and ${verb(names, 'is', 'are')} in sync. No node takes over until an operator resumes failover.`,
    ];
  }
  if (!others.some((member) => member.answers)) {
    return [
      'warn',
      verb(names, 'does not answer', 'do not answer'),
      `${active.name} is active, but sends no acks until ${verb(names, 'answers or is', 'answer or are')} no longer in sync.`,
    ];
  }
  const warm = others.filter((member) => member.warm).map((member) => member.name);
  if (warm.length > 0) {
    const [all, takes] = warm.length > 1 ? ['are', 'one of them takes'] : ['is', 'takes'];
    return [
      'good',
      'Protected',
      `${active.name} is active; ${list(warm)} ${all} in sync and warm, and ${takes} over if ${active.name} fails.`,
    ];
  }
  return [
    'warn',
    'Protected, not warm',
    `${active.name} is active. ${verb(names, 'has', 'have')} every acked event, but a takeover would wait until Spark has caught up there.`,
  ];
}

function alone({active, members}) {
  const silent = members.filter((member) => !member.answers).map((member) => member.name);
  const joining = members
    .filter((member) => member.answers && member !== active && member.role !== 'backup')
    .map((member) => member.name);
  const why = [
    silent.length && verb(silent, 'does not answer', 'do not answer'),
    joining.length && `${verb(joining, 'is', 'are')} not in sync yet`,
  ];
  return [
    'warn',
    'Not protected',
    `${active.name} is active alone: ${why.filter(Boolean).join('; ')}. Newly acked events are on one disk only.`,
  ];
}

// -- nobody acts -----------------------------------------------------------------------------------

function unled(group) {
  const {lease, members} = group;
  if (members.every((member) => !member.answers || member.role === 'starting')) {
    return ['busy', 'Starting', 'A node is reading its journal.'];
  }
  if (lease?.paused)
    return [
      'bad',
      'No node is active, and failover is paused',
      'No node takes over until an operator resumes failover. Producers get 503 and try again.',
    ];
  const successor = successorOf(group);
  return successor ? failingOver(group, successor) : waiting(group);
}

function failingOver({lease, members}, successor) {
  const holder = members.find((member) => member.name === lease?.holder);
  const left = successor.status?.lease.takeover_seconds;
  const detail =
    left == null
      ? ''
      : left > 0
        ? `The takeover comes in ${seconds(left)} at the latest. Producers get 503 and try again.`
        : 'The takeover comes now.';
  if (!holder)
    return ['busy', 'Handing over', `The lease is released; ${successor.name} acquires it.`, detail];
  const silent = holder.answers ? 'is no longer the active' : 'held the lease and does not answer';
  return [
    'failing',
    `Failing over to ${successor.name}`,
    `${holder.name} ${silent}; ${successor.name} takes over when the lease has expired.`,
    detail,
  ];
}

function waiting({lease, members}) {
  const holder = lease?.holder;
  const gone = holder && !members.find((member) => member.name === holder)?.answers;
  const first = gone
    ? `${holder} was active and does not answer, and no other node has every event that it acked. Start ${holder} again.`
    : 'No node can take over now. The reason of each is below.';
  return [
    'bad',
    'No node is active',
    `${first} Producers get 503 and try again. Nothing is lost meanwhile.`,
  ];
}
