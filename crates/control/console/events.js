// Events: what has happened, the newest first, as it happens.

import { badge, h, time } from "./dom.js";
import { table } from "./table.js";

/** What it happened to, by its name if it has one and is still there. */
export function subject(data, event) {
  const name = data.get(event.kind, event.resource)?.name ?? `${event.kind} #${event.resource}`;
  return event.kind === "vms" && data.get("vms", event.resource)
    ? h("a", { href: `#/vms/${event.resource}`, "data-focus": `event-${event.id}` }, name)
    : name;
}

export function eventsPage(context) {
  const { data } = context;
  const severity = h("select", { "aria-label": "Least severity", onchange: () => page.update() },
    [["info", "All"], ["warning", "Warnings and errors"], ["error", "Errors"]].map(([value, text]) => h("option", { value }, text)));
  const rank = { info: 0, warning: 1, error: 2 };
  const list = table({
    caption: "Events",
    key: (event) => event.id,
    text: (event) => [event.kind, data.get(event.kind, event.resource)?.name ?? event.resource, event.reason, event.message].join(" "),
    empty: "Nothing has happened yet.",
    columns: [
      { title: "When", cell: (event) => time(event.at) },
      { title: "Severity", cell: (event) => badge(event.severity) },
      { title: "Of", cell: (event) => subject(data, event) },
      { title: "Reason", cell: (event) => event.reason },
      { title: "What happened", cell: (event) => event.message },
    ],
  });
  const page = {
    element: h("div", {}, h("div", { class: "title" }, h("h1", {}, "Events"), severity), list.element),
    update() {
      if (!data.loaded) return;
      list.show(data.list("events").filter((event) => rank[event.severity] >= rank[severity.value]).reverse());
    },
  };
  return page;
}
