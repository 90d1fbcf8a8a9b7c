// Groups: VMs that were placed together, all or none.

import { badge, h, time } from "./dom.js";
import { table } from "./table.js";
import { vmLink } from "./vms.js";

/** More members than this are counted, not named. */
const NAMED = 8;

function policy(group) {
  const [[how, strictness]] = Object.entries(group.policy);
  return `${how.replace("_", " ")}, ${strictness}`;
}

function members(data, group) {
  const links = group.vms.slice(0, NAMED).flatMap((id) => [vmLink(data, id), " "]);
  const more = group.vms.length - NAMED;
  return more > 0 ? [links, `and ${more} more`] : links;
}

/** How many of its VMs are in which status. */
function statuses(data, group) {
  const counts = new Map();
  for (const id of group.vms) {
    const status = data.get("vms", id)?.status;
    if (status) counts.set(status, (counts.get(status) ?? 0) + 1);
  }
  return [...counts].map(([status, count]) => [badge(status), ` ${count} `]);
}

export function groupsPage(context) {
  const { data, session } = context;
  const remove = async (group) => {
    if (await context.confirm(`Delete the group ${group.name} with its ${group.vms.length} VMs?`, "Delete")) {
      await context.act(() => session.call("DELETE", `/v1/groups/${group.id}`));
    }
  };
  const list = table({
    caption: "Groups",
    key: (group) => group.id,
    text: (group) => group.name,
    empty: "There are no groups yet. A VM form with a count makes one.",
    columns: [
      { title: "Name", cell: (group) => group.name },
      { title: "Status", cell: (group) => (group.deleting ? badge("DELETING") : statuses(data, group)) },
      { title: "VMs", cell: (group) => members(data, group) },
      { title: "Policy", cell: policy },
      { title: "Spares", cell: (group) => `${group.held.length} of ${group.spares} held` },
      { title: "Environment", cell: (group) => data.name("environments", group.environment) },
      { title: "Made", cell: (group) => time(group.created_at) },
      {
        title: "Actions",
        class: "right",
        cell: (group) => session.changes &&
          h("button", { class: "plain danger", "data-focus": `delete-${group.id}`, disabled: group.deleting, "aria-label": `Delete ${group.name}`, onclick: () => remove(group) }, "Delete"),
      },
    ],
  });
  const element = h("div", {}, h("div", { class: "title" }, h("h1", {}, "Groups"), session.changes ? h("a", { class: "button main", href: "#/vms/new" }, "New group") : null), list.element);
  return {
    element,
    update() {
      if (data.loaded) list.show(data.list("groups").reverse());
    },
  };
}
