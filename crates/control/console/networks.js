// Environments, and their networks with subnets and ports.

import { facts, field, h, swap, time } from "./dom.js";
import { dialogForm, pick } from "./forms.js";
import { table } from "./table.js";
import { vmLink } from "./vms.js";

const PROFILES = [["roce", "RoCE: RDMA beside ordinary traffic"], ["ethernet", "Ethernet alone"], ["infiniband", "InfiniBand (not run on hardware)"]];

function newEnvironment({ data, session }) {
  const name = h("input", { required: true, maxlength: 50 });
  const region = pick("Region", data.list("regions"));
  return dialogForm("New environment", {
    word: "Make environment",
    fields: [field("Name", name), region.element],
    send: (once) => session.call("POST", "/v1/environments", { once, body: { name: name.value, region: region.select.value } }),
  });
}

function newNetwork({ data, session }) {
  const name = h("input", { required: true, maxlength: 128 });
  const environment = pick("Environment", data.list("environments"), { value: (item) => item.id });
  const profile = h("select", {}, PROFILES.map(([value, words]) => h("option", { value }, words)));
  const mtu = h("input", { type: "number", min: 1280, max: 9000, value: 4200, required: true });
  const rails = h("input", { type: "number", min: 1, max: 16, value: 1, required: true });
  const routed = h("input", { type: "checkbox" });
  const cidr = h("input", { placeholder: "192.168.7.0/24", spellcheck: "false" });
  const send = (once) => {
    const body = {
      name: name.value,
      environment: Number(environment.select.value),
      profile: profile.value,
      mtu: Number(mtu.value),
      rails: Number(rails.value),
      routed: routed.checked,
    };
    if (cidr.value.trim()) body.cidr = cidr.value.trim();
    return session.call("POST", "/v1/networks", { once, body });
  };
  return dialogForm("New network", {
    word: "Make network",
    fields: [
      field("Name", name),
      environment.element,
      field("Profile", profile),
      h("div", { class: "row" }, field("MTU in bytes", mtu), field("Subnets", rails, "One for each rail.")),
      field("Routed between subnets", routed),
      field("First subnet", cidr, "From the region's addresses if nothing is said."),
    ],
    send,
  });
}

export function networksPage(context) {
  const { data, session } = context;
  let chosen = null;
  const remove = async (kind, item, noun) => {
    if (await context.confirm(`Delete the ${noun} ${item.name ?? item.cidr}?`, "Delete")) {
      await context.act(() => session.call("DELETE", `/v1/${kind}/${item.id}`));
    }
  };
  const deletion = (kind, item, noun) =>
    session.changes &&
    h("button", { class: "plain danger", "data-focus": `delete-${item.id}`, "aria-label": `Delete ${item.name ?? item.cidr}`, onclick: () => remove(kind, item, noun) }, "Delete");
  const environments = table({
    caption: "Environments",
    key: (item) => item.id,
    empty: "There are no environments yet; everything else is made in one.",
    columns: [
      { title: "Name", cell: (item) => item.name },
      { title: "Region", cell: (item) => item.region },
      { title: "Default network", cell: (item) => data.name("networks", item.default_network) },
      { title: "VMs", class: "number", cell: (item) => data.of("vms", "environment", item.id).length },
      { title: "Made", cell: (item) => time(item.created_at) },
      { title: "Actions", class: "right", cell: (item) => deletion("environments", item, "environment") },
    ],
  });
  const networks = table({
    caption: "Networks",
    key: (item) => item.id,
    text: (item) => [item.name, item.vlan ?? "", item.profile, data.name("environments", item.environment)].join(" "),
    empty: "There are no networks yet; an environment comes with one.",
    columns: [
      {
        title: "Name",
        cell: (item) => h("button", { class: "link", "data-focus": `network-${item.id}`, "aria-expanded": String(chosen === item.id), onclick: () => show(item.id) }, item.name),
      },
      { title: "Environment", cell: (item) => data.name("environments", item.environment) },
      { title: "Profile", cell: (item) => (item.profile === "roce" ? `RoCE ${item.roce}` : item.profile) },
      { title: "VLAN", class: "number", cell: (item) => item.vlan ?? (item.partition ? `P_Key ${item.partition}` : "") },
      { title: "MTU", class: "number", cell: (item) => item.mtu },
      { title: "Subnets", class: "mono", cell: (item) => data.of("subnets", "network", item.id).map((subnet) => subnet.cidr).join(" ") },
      { title: "Ports", class: "number", cell: (item) => data.of("ports", "network", item.id).length },
      { title: "Actions", class: "right", cell: (item) => deletion("networks", item, "network") },
    ],
  });
  const subnets = table({
    caption: "Subnets",
    key: (item) => item.id,
    empty: "It has no subnets.",
    columns: [
      { title: "Addresses", class: "mono", cell: (item) => item.cidr },
      { title: "Rail", class: "number", cell: (item) => item.rail ?? "" },
      { title: "Router", class: "mono", cell: (item) => item.gateway ?? "none" },
      { title: "Ports", class: "number", cell: (item) => data.of("ports", "subnet", item.id).length },
      { title: "Actions", class: "right", cell: (item) => deletion("subnets", item, "subnet") },
    ],
  });
  const ports = table({
    caption: "Ports",
    key: (item) => item.id,
    text: (item) => [data.name("vms", item.vm), item.address, item.mac].join(" "),
    empty: "It has no ports.",
    columns: [
      { title: "VM", cell: (item) => vmLink(data, item.vm) },
      { title: "Interface", cell: (item) => item.name },
      { title: "Address", class: "mono", cell: (item) => `${item.address}/${item.prefix}` },
      { title: "MAC or GUID", class: "mono", cell: (item) => item.guid ?? item.mac },
    ],
  });
  const detail = h("section", { class: "detail", "aria-live": "polite" });
  const heading = h("div");

  function show(id) {
    chosen = chosen === id ? null : id;
    page.update();
  }

  const opens = (make) => () => make(context)();
  const made = session.changes;
  const page = {
    element: h(
      "div",
      {},
      h("div", { class: "title" }, h("h1", {}, "Networks"), made ? h("button", { class: "main", onclick: opens(newNetwork) }, "New network") : null),
      networks.element,
      detail,
      h("div", { class: "title" }, h("h2", {}, "Environments"), made ? h("button", { class: "plain", onclick: opens(newEnvironment) }, "New environment") : null),
      environments.element,
    ),
    update() {
      if (!data.loaded) return;
      networks.show(data.list("networks"));
      environments.show(data.list("environments"));
      const network = chosen === null ? null : data.get("networks", chosen);
      if (!network) return void swap(detail);
      swap(
        heading,
        h("h2", {}, network.name),
        facts([
          ["Region", network.region],
          ["Fabric", network.fabric],
          ["Routed", network.routed ? "yes: its subnets reach each other" : "no: its subnets are apart"],
          ["Made", time(network.created_at)],
        ]),
      );
      if (!heading.isConnected) swap(detail, heading, h("h3", {}, "Subnets"), subnets.element, h("h3", {}, "Ports"), ports.element);
      subnets.show(data.of("subnets", "network", network.id));
      ports.show(data.of("ports", "network", network.id));
    },
  };
  return page;
}
