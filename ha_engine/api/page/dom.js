// Elements, made from names and text and never from markup: what a node says can only be text.

const SVG = 'http://www.w3.org/2000/svg';

/** An element; null and false among attributes and children are left out. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same in a drawing. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value != null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/**
 * Makes the children of `place` what `children` are, changing only what differs: so the focus, a
 * selection and what a screen reader reads stay where they are while the page is drawn anew.
 */
export function show(place, ...children) {
  const fresh = document.createDocumentFragment();
  fresh.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  morphChildren(place, fresh);
}

function morphChildren(old, fresh) {
  const wanted = [...fresh.childNodes];
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
  wanted.forEach((node, index) => {
    const present = old.childNodes[index];
    if (!present) old.append(node);
    else if (present.nodeType !== node.nodeType || present.nodeName !== node.nodeName)
      present.replaceWith(node);
    else morph(present, node);
  });
}

function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const {name} of [...old.attributes])
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const {name, value} of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

/** A list of terms with their values; a row whose value is null is left out. */
export function facts(rows) {
  const known = Object.entries(rows).filter(([, value]) => value != null);
  return h(
    'dl',
    {class: 'facts'},
    known.map(([term, value]) => h('div', {}, h('dt', {}, term), h('dd', {}, value))),
  );
}

/** A word with a shape and a colour; `level` is good, busy, warn, bad or calm. */
export function badge(level, text) {
  return h('span', {class: 'badge', 'data-level': level}, text);
}
