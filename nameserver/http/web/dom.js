// Create elements, and change them in place. Existing nodes stay, so the focus and the selection stay too.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(node, name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function setText(node, text) {
  const wanted = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const wanted = value === true ? "" : String(value);
    if (node.getAttribute(name) !== wanted) node.setAttribute(name, wanted);
  }
}

// Return true if the pointer is over a node, or the focus is inside it. The caller must then not move anything in it.
export function isInUse(node) {
  return node.matches(":hover") || (node.contains(document.activeElement) && document.activeElement !== node);
}

// Give a node one child for each thing, in the order of the things. A child belongs to the thing with the same key.
// If `hold` is true, no child moves: a child without a thing is only marked, and new things get no child yet.
// Return the number of children that must still be added or removed.
export function patchList(parent, things, keyOf, make, update, hold = false) {
  const known = new Map(Array.from(parent.children, (child) => [child.dataset.key, child]));
  const keys = things.map((thing) => String(keyOf(thing)));
  const wanted = new Set(keys);
  let waiting = 0;
  for (const [key, child] of known) {
    if (wanted.has(key)) continue;
    if (hold) {
      child.classList.add("gone");
      waiting += 1;
    } else {
      moveFocusFrom(child);
      child.remove();
    }
  }
  let place = parent.firstElementChild;
  things.forEach((thing, index) => {
    let child = known.get(keys[index]);
    if (child === undefined) {
      if (hold) {
        waiting += 1;
        return;
      }
      child = make(thing);
      child.dataset.key = keys[index];
    }
    child.classList.remove("gone");
    update(child, thing);
    if (hold) return;
    if (child === place) {
      place = place.nextElementSibling;
    } else {
      parent.insertBefore(child, place);
    }
  });
  return waiting;
}

function moveFocusFrom(node) {
  if (!node.contains(document.activeElement)) return;
  const next = node.nextElementSibling ?? node.previousElementSibling;
  const target = next?.querySelector("a, button") ?? document.querySelector("main h1");
  target?.focus();
}
