// The page: asks the nodes, makes one group of what they say, and draws it once a second.
//
// asking.js hears the nodes; group.js, verdict.js, alerts.js and samples.js make sense of it;
// sections/ draw it; reading.js asks for a token, request.js for what an operator wants.

import {alertsOf} from './alerts.js';
import {Nodes, ObservedNodes} from './asking.js';
import {h, show} from './dom.js';
import {groupOf} from './group.js';
import {Reading} from './reading.js';
import {Requests} from './request.js';
import {Samples} from './samples.js';
import {applications} from './sections/applications.js';
import {charts} from './sections/charts.js';
import {nodeCards} from './sections/nodes.js';
import {history, snapshots} from './sections/past.js';
import {queries} from './sections/queries.js';
import {sources} from './sections/sources.js';
import {verdictOf} from './verdict.js';

const DRAW_EVERY_MS = 500;
const SAMPLE_EVERY_MS = 1000;
const SIGNS = {good: '●', busy: '◐', failing: '◐', warn: '▲', bad: '✖', dark: '✖'};

const base = new URL('.', location.href).href;
const reading = new Reading();
const {observed} = document.body.dataset;
const nodes = observed
  ? new ObservedNodes(base, reading, observed.split(' '))
  : new Nodes(base, reading);
const samples = new Samples();
const requests = new Requests(base);
const blocked = new Set(); // peers that this page was loaded before
let sampledAt = -Infinity;

function draw() {
  const now = performance.now();
  reading.ask(nodes.first.denied !== null);
  nodes.meetPeers();
  const group = groupOf(nodes, now);
  if (!group) return drawTrouble();
  if (now - sampledAt >= SAMPLE_EVERY_MS) {
    samples.take(group, now);
    sampledAt = now;
  }
  drawVerdict(group);
  put('group', 'group ', h('strong', {}, group.name));
  put('actions', actions(group));
  put('notices', notices(group));
  put('alerts', alertList(group));
  put('nodes', nodeCards(group));
  put('applications', applications(group));
  put('charts', charts(group, samples.points, now));
  put('queries', queries(group, samples, now));
  put('sources', sources(group));
  put('snapshots', snapshots(group));
  put('history', history(group));
  put('footer', `ha_engine ${group.teller.status.version}, reported by ${group.teller.name}`);
}

/** What was drawn before must not pass for news. */
function drawOrTell() {
  try {
    draw();
  } catch (error) {
    const title = 'This page cannot show the answers of the nodes';
    const text = `${error}. Load the page again, or run "ha-engine status", which shows the same.`;
    setVerdict({level: 'dark', title, text, detail: ''});
    console.error(error);
  }
}

function put(id, ...children) {
  show(document.getElementById(id), ...children);
}

/** Nobody has answered yet. */
function drawTrouble() {
  const {trouble, denied} = nodes.first;
  if (denied) return setVerdict(deniedVerdict(nodes.first));
  if (!trouble) return;
  setVerdict({
    level: 'dark',
    title: observed
      ? 'No node has answered this observer yet'
      : 'The node does not answer this browser',
    text: `${trouble}.`,
    detail: 'Asking again each second.',
  });
}

function deniedVerdict({denied, trouble}) {
  const refused = denied.token && denied.token === reading.token;
  return {
    level: 'warn',
    title: 'The node asks for a token',
    text: refused
      ? `It refused this token: ${trouble}.`
      : 'It shows the group only to callers with a token for reading or for everything.',
    detail: 'ha-engine config token makes a token; access.read in the config lists the readers.',
  };
}

function drawVerdict(group) {
  const {first} = nodes;
  const verdict = group.dark && first.denied ? deniedVerdict(first) : verdictOf(group);
  setVerdict(verdict);
  document.title = `${SIGNS[verdict.level]} ${verdict.title} · ${group.name}`;
}

function setVerdict({level, title, text, detail}) {
  const place = document.getElementById('verdict');
  place.dataset.level = level;
  show(place.querySelector('h1'), title);
  show(place.querySelector('[role=status] p'), text);
  show(place.querySelector('.detail'), detail);
}

// -- small sections --------------------------------------------------------------------------------

/** Where the node that serves the page is not the one to ask, the page of that one is named. */
function actions({active, home, homeLost, isObserved, lease, members}) {
  if (homeLost) return [];
  if (isObserved) {
    return active?.url
      ? [h('a', {class: 'button', href: active.url}, `Page of ${active.name}`)]
      : [];
  }
  const button = (what, text) => h('button', {type: 'button', 'data-request': what}, text);
  const elsewhere = active && active !== home && active.url;
  return [
    members.length > 1 && active && active === home && button('switchover', 'Switch over…'),
    elsewhere &&
      h('a', {class: 'button', href: active.url}, `Switch over at ${active.name}’s page`),
    lease &&
      (lease.paused ? button('resume', 'Resume failover…') : button('pause', 'Pause failover…')),
  ];
}

function notices(group) {
  const {home, homeLost, teller, dark} = group;
  const name = home?.name ?? 'The node';
  return [
    homeLost &&
      !dark &&
      h(
        'p',
        {class: 'notice', 'data-level': 'warn'},
        `${name}, which serves this page, ${nodes.home.denied ? 'asks for another token' : 'no longer answers'}. `,
        `The page now shows the answers of ${teller.name}. `,
        h('a', {href: teller.base}, `Page of ${teller.name}`),
      ),
    blocked.size > 0 &&
      h(
        'p',
        {class: 'notice', 'data-level': 'info'},
        'A node has started since this page was loaded. ',
        h('a', {href: ''}, 'Load the page again'),
        ' to get answers from that node.',
      ),
  ];
}

function alertList(group) {
  const alerts = alertsOf(group);
  if (alerts.length === 0) return [];
  const runbook = (name) => h('span', {class: 'runbook'}, `docs/RUNBOOK.md: ${name}`);
  return h(
    'ul',
    {class: 'alerts'},
    alerts.map((alert) =>
      h(
        'li',
        {'data-level': alert.level},
        h('strong', {}, alert.title),
        ' ',
        h('span', {}, alert.text),
        alert.runbook && runbook(alert.runbook),
      ),
    ),
  );
}

// -- life ------------------------------------------------------------------------------------------

document.addEventListener('click', (event) => {
  const what = event.target.closest('[data-request]')?.dataset.request;
  if (what) requests.open(what);
});
document.addEventListener('securitypolicyviolation', (event) => {
  if (event.effectiveDirective === 'connect-src') blocked.add(event.blockedURI);
});
setInterval(drawOrTell, DRAW_EVERY_MS);
