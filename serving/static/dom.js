// Elements made of plain values. Text is always a text node: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with attributes and children; children that are null or false are left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** The element of an id. */
export const at = (id) => document.getElementById(id);

/** Replace the children of a node. */
export const show = (node, ...children) => node.replaceChildren(...children.flat().filter(Boolean));

/** Set a text only if it changes, so that screen readers do not repeat it. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
