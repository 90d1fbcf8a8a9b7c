// VMs: all of them in a table, and one of them with all there is to know of it.

import { badge, facts, flavorWords, h, megabits, swap, time } from "./dom.js";
import { table } from "./table.js";

/** What may be asked of a VM in a status; the server has the last word. */
const ACTIONS = [
  { verb: "start", word: "Start", when: ["SHUTOFF"] },
  { verb: "stop", word: "Stop", when: ["ACTIVE"] },
  { verb: "reboot", word: "Reboot", when: ["ACTIVE"] },
];

function actions(context, vm) {
  if (!context.session.changes) return null;
  const path = `/v1/vms/${vm.id}`;
  const remove = async () => {
    if (await context.confirm(`Delete the VM ${vm.name}? What is on its disk is gone with it.`, "Delete")) {
      await context.act(() => context.session.call("DELETE", path));
    }
  };
  return h(
    "div",
    { class: "actions" },
    ACTIONS.map(({ verb, word, when }) =>
      h("button", {
        class: "plain",
        disabled: !when.includes(vm.status),
        "data-focus": `${verb}-${vm.id}`,
        "aria-label": `${word} ${vm.name}`,
        onclick: () => context.act(() => context.session.call("POST", `${path}/${verb}`)),
      }, word),
    ),
    h("button", {
      class: "plain danger",
      disabled: vm.status === "DELETING",
      "data-focus": `delete-${vm.id}`,
      "aria-label": `Delete ${vm.name}`,
      onclick: remove,
    }, "Delete"),
  );
}

/** A link to a VM by its name. */
export function vmLink(data, id) {
  return h("a", { href: `#/vms/${id}` }, data.name("vms", id));
}

/** Why it is in error, shortly; the whole of it is on its page. */
function status(vm) {
  return [badge(vm.status), vm.fault ? h("span", { class: "fault", title: vm.fault.message }, vm.fault.message) : null];
}

export function vmsPage(context) {
  const { data, session } = context;
  const addresses = (vm) => data.of("ports", "vm", vm.id).map((port) => port.address);
  const list = table({
    caption: "VMs",
    key: (vm) => vm.id,
    text: (vm) => [vm.name, vm.status, vm.flavor.name, vm.located?.host ?? "", ...addresses(vm)].join(" "),
    empty: "There are no VMs yet.",
    columns: [
      { title: "Name", cell: (vm) => h("a", { href: `#/vms/${vm.id}`, "data-focus": `vm-${vm.id}` }, vm.name) },
      { title: "Status", cell: status },
      { title: "Flavor", cell: (vm) => h("span", { title: flavorWords(vm.flavor) }, vm.flavor.name) },
      { title: "Group", cell: (vm) => (vm.group ? data.name("groups", vm.group.group) : "") },
      { title: "Host", cell: (vm) => vm.located?.host ?? "" },
      { title: "Addresses", class: "mono", cell: (vm) => addresses(vm).join(" ") },
      { title: "Made", cell: (vm) => time(vm.created_at) },
      { title: "Actions", class: "right", cell: (vm) => actions(context, vm) },
    ],
  });
  const cut = h("p", { class: "hint", hidden: true }, "There are more VMs than are shown here: the oldest 10,000. The command line lists them all.");
  const element = h(
    "div",
    {},
    h("div", { class: "title" }, h("h1", {}, "VMs"), session.changes ? h("a", { class: "button main", href: "#/vms/new" }, "New VM") : null),
    cut,
    list.element,
  );
  return {
    element,
    update() {
      cut.hidden = !data.cut.has("vms");
      if (data.loaded) list.show(data.list("vms").reverse());
    },
  };
}

export function vmPage(context, id) {
  const { data } = context;
  const element = h("div");
  const of = (vm) => data.list("events").filter((event) => event.kind === "vms" && event.resource === vm.id).reverse().slice(0, 50);
  const ports = table({
    caption: "Interfaces",
    key: (port) => port.id,
    empty: "It has no VFs.",
    columns: [
      { title: "Name", cell: (port) => port.name },
      { title: "Network", cell: (port) => data.name("networks", port.network) },
      { title: "Address", class: "mono", cell: (port) => `${port.address}/${port.prefix}` },
      { title: "MAC", class: "mono", cell: (port) => port.mac },
      { title: "VF", cell: (port) => port.place },
      { title: "Rate", cell: (port) => port.rate },
    ],
  });
  const events = table({
    caption: "Events of the VM",
    key: (event) => event.id,
    empty: "Nothing has happened to it.",
    columns: [
      { title: "When", cell: (event) => time(event.at) },
      { title: "What", cell: (event) => [badge(event.severity), " ", event.reason] },
      { title: "", cell: (event) => event.message },
    ],
  });
  const title = h("div", { class: "title" });
  const about = h("div");
  return {
    element,
    update() {
      const vm = data.get("vms", Number(id));
      if (!data.loaded) return;
      if (!vm) {
        swap(element, h("h1", {}, `VM #${id}`), h("p", {}, "It is gone, or it never was. ", h("a", { href: "#/vms" }, "All VMs")));
        return;
      }
      swap(title, h("h1", {}, vm.name), badge(vm.status), actions(context, vm) ?? h("span"));
      swap(
        about,
        vm.fault ? h("p", { class: "problem" }, vm.fault.message) : null,
        facts([
          ["Id", String(vm.id)],
          ["Flavor", `${vm.flavor.name} (${flavorWords(vm.flavor)})`],
          ["Image", vm.image.name],
          ["Environment", `${data.name("environments", vm.environment)}, in ${vm.region}`],
          ["Host", vm.located?.host],
          ["GPUs", vm.located?.place.gpus.join(" ")],
          ["Group", vm.group ? `${data.name("groups", vm.group.group)}, number ${vm.group.number}` : null],
          ["Key pair", vm.keypair ? data.name("keypairs", vm.keypair) : null],
          ["Labels", vm.labels.join(", ")],
          ["Made", time(vm.created_at)],
          ["Status since", time(vm.changed_at)],
        ]),
      );
      if (!about.isConnected) {
        swap(element, title, about, h("h2", {}, "Interfaces"), ports.element, h("h2", {}, "Events"), events.element);
      }
      // The k-th port is on the k-th VF of its place.
      const places = vm.located?.place.vfs ?? [];
      const shown = data.of("ports", "vm", vm.id).toSorted((a, b) => a.index - b.index);
      ports.show(shown.map((port) => {
        const at = places[port.index];
        return { ...port, place: at ? `${at.pf} / VF ${at.vf}` : "", rate: at ? megabits(at.rate) : "" };
      }));
      events.show(of(vm));
    },
  };
}
