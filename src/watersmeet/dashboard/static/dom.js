// Elements are made by functions, and text is always text: nothing that a run says can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "colour") node.style.background = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Replaces children only where something is different, so that focus, selections and scroll positions stay.
export function replaceIfChanged(node, key, make) {
  const text = JSON.stringify(key);
  if (node.dataset.shown === text) return false;
  node.dataset.shown = text;
  node.replaceChildren(...[make()].flat());
  return true;
}

export function onPress(act) {
  return {
    onclick: act,
    onkeydown: (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        act(event);
      }
    },
  };
}

export function table(headings, rows, caption) {
  const cell = (tag, heading, content, attributes) =>
    h(tag, { class: heading.startsWith("#") ? "number" : null, "data-name": heading.replace("#", "") || null, ...attributes }, content);
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h("table", { "aria-label": caption, class: headings.length > 5 ? "wide" : null },
      h("thead", {}, h("tr", {}, headings.map((name) => cell("th", name, name.replace("#", ""), { scope: "col" })))),
      h("tbody", {}, rows.map((row) => h("tr", row.attributes ?? {}, row.cells.map((content, place) => cell("td", headings[place], content)))))));
}
