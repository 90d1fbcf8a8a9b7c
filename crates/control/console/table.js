// A table of many things: a filter, fifty rows at a time, and rows that stay as they are if what they
// show does, so that neither the focus nor a selection is lost when something else changes.

import { h, swap } from "./dom.js";

const ROWS = 50;

/** `columns`: { title, cell(item), class }. `text(item)`: what the filter looks in; without it there is
    no filter. `key(item)`: what tells rows apart. */
export function table({ caption, columns, key, text, empty, filterLabel }) {
  const head = h("thead", {}, h("tr", {}, columns.map(({ title, class: name }) => h("th", { scope: "col", class: name }, title))));
  const body = h("tbody");
  const pager = h("nav", { class: "pager", "aria-label": `Pages of ${caption}` });
  const filter = text ? h("input", { type: "search", placeholder: "Filter", "aria-label": filterLabel ?? `Filter ${caption}`, oninput: () => ((page = 0), draw()) }) : null;
  let rows = new Map();
  let items = [];
  let page = 0;

  function row(item) {
    const made = h("tr", {}, columns.map(({ cell, class: name }) => h("td", { class: name }, cell(item))));
    const was = rows.get(key(item));
    return was?.isEqualNode(made) ? was : made;
  }

  function turn(by) {
    page += by;
    draw();
  }

  function draw() {
    const wanted = filter?.value.trim().toLowerCase();
    const found = wanted ? items.filter((item) => text(item).toLowerCase().includes(wanted)) : items;
    page = Math.max(0, Math.min(page, Math.ceil(found.length / ROWS) - 1));
    const first = page * ROWS;
    const shown = found.slice(first, first + ROWS);
    const made = new Map(shown.map((item) => [key(item), row(item)]));
    const same = made.size === body.children.length && [...made.values()].every((one, i) => one === body.children[i]);
    rows = made;
    if (!shown.length) {
      swap(body, h("tr", {}, h("td", { class: "empty", colspan: columns.length }, wanted ? "Nothing matches the filter." : empty)));
    } else if (!same) {
      swap(body, ...made.values());
    }
    const last = first + shown.length;
    const paged = found.length > ROWS;
    pager.hidden = !paged;
    if (paged) {
      swap(
        pager,
        h("button", { class: "plain", "data-focus": "back", disabled: page === 0, onclick: () => turn(-1) }, "Previous"),
        h("span", {}, `${first + 1}–${last} of ${found.length}`),
        h("button", { class: "plain", "data-focus": "on", disabled: last >= found.length, onclick: () => turn(1) }, "Next"),
      );
    }
  }

  const element = h("section", { class: "table" }, filter, h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "unseen" }, caption), head, body)), pager);
  return {
    element,
    show(now) {
      items = now;
      draw();
    },
  };
}
