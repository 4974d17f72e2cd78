// The application: the newest deployment, how far each node is with it, and those before.

import {badge, facts, h} from '../dom.js';
import {brief, count, list, moment, NONE} from '../words.js';

const LEVELS = {done: 'good', moving: 'busy', waiting: 'warn'};
const STATES = {done: 'done', moving: 'under way', waiting: 'waits'};

/** Nothing where the node says neither what it runs nor what is deployed, as older ones do. */
export function applications(group) {
  const {rollout, application: seen} = group;
  if (!rollout && !seen) return [];
  const deployments = all(rollout?.deployment, seen?.history ?? []);
  return [
    h('h2', {}, 'Application'),
    rollout ? progress(rollout, group) : ofFile(seen),
    deployments.length > 0 && history(deployments, group),
  ];
}

function ofFile({name, digest, deployed}) {
  const newest = deployed && `deployment ${deployed.number}, by ${deployed.by}`;
  return facts({
    name,
    'brought by': newest ?? 'a file on each host',
    digest: newest ? null : brief(digest),
  });
}

function progress({deployment, state, progress: words}, group) {
  const {number, name, by, at_us: at} = deployment;
  return h(
    'div',
    {class: 'rollout', 'data-state': state},
    h('header', {}, h('h3', {}, `${name}, deployment ${number}`), badge(LEVELS[state], STATES[state])),
    h('p', {class: 'from'}, `Deployed by ${by}, ${moment(at / 1000)}, id ${brief(deployment.id)}.`),
    h('p', {}, words),
    h(
      'ol',
      {class: 'steps', 'aria-label': `Nodes and deployment ${number}`},
      group.members.map(step),
    ),
  );
}

/** A node, with what it has to do with the deployment; the mark and the words both tell it. */
function step(member) {
  const [mark, words] = stateOf(member);
  return h('li', {'data-mark': mark}, h('b', {}, member.name), ` ${words}`);
}

function stateOf({answers, application, inSync, restarts, role}) {
  if (restarts) return [null, 'restarts'];
  if (!answers) return ['gone', 'no answer'];
  if (application === null) return ['gone', 'its version of ha_engine does not report what it runs'];
  if (application.is_former) return [null, 'runs the former application'];
  return inSync || role === 'backup' ? ['done', 'runs it'] : ['now', 'runs it, not in sync yet'];
}

// -- those before ----------------------------------------------------------------------------------

const COLUMNS = ['number', 'runs on', 'when', 'by', 'application', 'id', 'changed queries'];

const STATE_OF_CHANGED = {
  keep: 'keep their state',
  reset: 'begin again',
  backfill: 'begin again from the journal',
};

function history(deployments, group) {
  return h(
    'div',
    {
      class: 'scroll',
      role: 'region',
      tabindex: '0',
      'aria-label': 'Table of the deployments, newest first',
    },
    h(
      'table',
      {},
      h('thead', {}, h('tr', {}, COLUMNS.map((name) => h('th', {scope: 'col'}, name)))),
      h('tbody', {}, deployments.map((one) => line(one, deployments, group))),
    ),
  );
}

function line({number, at_us: at, name, by, id, on_change: onChange}, deployments, group) {
  const when = new Date(at / 1000).toISOString();
  return h(
    'tr',
    {},
    h('th', {scope: 'row'}, count(number)),
    h('td', {}, (isNewest(number, id, deployments) && runsOn(id, group)) || NONE),
    h('td', {}, h('time', {datetime: when}, moment(when))),
    h('td', {}, by),
    h('td', {}, name),
    h('td', {}, brief(id)),
    h('td', {}, STATE_OF_CHANGED[onChange] ?? NONE),
  );
}

/** A node lists a deployment only once it has its files. */
function all(newest, listed) {
  return newest && newest.number !== listed[0]?.number ? [newest, ...listed] : listed;
}

/** A rollback deploys the same files again, and then the later number counts. */
function isNewest(number, id, deployments) {
  return deployments.find((one) => one.id === id).number === number;
}

function runsOn(id, {members}) {
  return list(members.filter(({application}) => application?.archive === id).map(({name}) => name));
}
