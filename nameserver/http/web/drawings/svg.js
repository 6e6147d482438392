/** Create and change the elements of a drawing. */

const SVG = "http://www.w3.org/2000/svg";

/** Return a new SVG element with these attributes and children. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Return a new HTML element with these attributes and children; a string becomes text, never markup. */
export function html(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function fill(element, attributes, children) {
  set(element, attributes);
  element.append(...children);
  return element;
}

/** Set the attributes that differ; null and false remove an attribute. An unchanged element needs no new layout. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) {
      if (element.hasAttribute(name)) element.removeAttribute(name);
      continue;
    }
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
  return element;
}

/** Set the text if it differs. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
  return element;
}
