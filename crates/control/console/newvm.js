// The form that makes a VM, or a group of them.

import { field, flavorWords, h, swap } from "./dom.js";
import { dialogForm, form, pick } from "./forms.js";

const POLICIES = [["compact", "Near each other"], ["same_leaf", "On the same leaves"], ["spread", "On different hosts"]];

function newKeypair({ session }, environment) {
  const name = h("input", { required: true, maxlength: 50 });
  const key = h("textarea", { required: true, rows: 4, spellcheck: "false", placeholder: "ssh-ed25519 AAAA… you@example" });
  return dialogForm("Import a public key", {
    word: "Import",
    fields: [field("Name", name), field("Public key", key, "A line of OpenSSH's authorized_keys.")],
    send: (once) => session.call("POST", "/v1/keypairs", { once, body: { name: name.value, environment, public_key: key.value.trim() } }),
  });
}

/** Networks of the VM's VFs: rows of a network and how many VFs are on it. */
function attachments(data, environment) {
  const rows = h("div");
  const list = () => data.of("networks", "environment", environment());
  const add = () => {
    const network = pick("Network", list(), { value: (item) => item.id, words: (item) => (item.vlan ? `${item.name} (VLAN ${item.vlan})` : item.name) });
    const vfs = h("input", { type: "number", min: 1, max: 64, placeholder: "the rest" });
    const row = h("div", { class: "row" }, network.element, field("VFs", vfs),
      h("button", { class: "plain", type: "button", "aria-label": "Remove this network", onclick: () => row.remove() }, "Remove"));
    row.chosen = () => ({ network: Number(network.select.value), ...(vfs.value && { vfs: Number(vfs.value) }) });
    rows.append(row);
  };
  const element = h("fieldset", {}, h("legend", {}, "Networks"), h("p", { class: "hint" }, "The environment's default network, if none is named."), rows,
    h("button", { class: "plain", type: "button", onclick: add }, "Name a network"));
  return { element, chosen: () => [...rows.children].map((row) => row.chosen()), clear: () => rows.replaceChildren() };
}

export function newVmPage(context) {
  const { data, session } = context;
  const name = h("input", { id: "vm-name", required: true, maxlength: 50, spellcheck: "false", autocomplete: "off" });
  const environment = pick("Environment", [], { value: (item) => item.id, words: (item) => `${item.name} (${item.region})` });
  const flavor = pick("Flavor", [], { words: (item) => `${item.name}: ${flavorWords(item)}` });
  const image = pick("Image", []);
  const keypair = pick("Key pair", [], { none: "None: nobody logs in by key" });
  const networks = attachments(data, () => Number(environment.select.value));
  const count = h("input", { id: "vm-count", type: "number", min: 1, max: 1024, value: 1, required: true });
  const spares = h("input", { type: "number", min: 0, max: 1024, value: 0, required: true });
  const policy = h("select", {}, POLICIES.map(([value, words]) => h("option", { value }, words)));
  const strictness = h("select", {}, h("option", { value: "preferred" }, "as far as can be"), h("option", { value: "strict" }, "or not at all"));
  const group = h("div", { class: "row", hidden: true }, field("They lie", policy), field("Strictness", strictness), field("Spare places", spares, "Held for VMs whose host is lost."));
  const userData = h("textarea", { rows: 5, spellcheck: "false", placeholder: "#cloud-config" });
  const labels = h("input", { placeholder: "one, another" });
  const missing = h("p", { class: "hint" });

  const many = () => Number(count.value) > 1;
  count.addEventListener("input", () => (group.hidden = !many()));
  environment.select.addEventListener("change", () => {
    networks.clear();
    page.update();
  });

  function spec() {
    const vm = {
      name: name.value.trim(),
      environment: Number(environment.select.value),
      flavor: flavor.select.value,
      image: image.select.value,
      networks: networks.chosen(),
      labels: labels.value.split(",").map((label) => label.trim()).filter(Boolean),
    };
    if (keypair.select.value) vm.keypair = keypair.select.value;
    if (userData.value.trim()) vm.user_data = userData.value;
    return vm;
  }

  function send(once) {
    if (!many()) return session.call("POST", "/v1/vms", { once, body: spec() });
    const body = { count: Number(count.value), spares: Number(spares.value), policy: { [policy.value]: strictness.value }, vm: spec() };
    return session.call("POST", "/v1/groups", { once, body });
  }

  const importKey = h("button", { class: "plain", type: "button", onclick: () => newKeypair(context, Number(environment.select.value))() }, "Import a key");
  const element = h(
    "div",
    { class: "narrow" },
    h("div", { class: "title" }, h("h1", {}, "New VM")),
    missing,
    form({
      word: "Make",
      send,
      done: (made) => context.go(made.vms ? "groups" : "vms"),
      cancel: () => context.go("vms"),
      fields: [
        h("div", { class: "row" }, field("Name", name, "Letters, digits, - and .: its host name."), field("How many", count, "More than one are a group: placed together, all or none.")),
        group,
        environment.element,
        h("div", { class: "row" }, flavor.element, image.element),
        h("div", { class: "row" }, keypair.element, importKey),
        networks.element,
        h("details", {}, h("summary", {}, "User data and labels"), field("User data for cloud-init", userData), field("Labels", labels, "With commas between them.")),
      ],
    }),
  );
  const page = {
    element,
    update() {
      if (!data.loaded) return;
      environment.refill(data.list("environments"));
      flavor.refill(data.list("flavors"));
      image.refill(data.list("images"));
      keypair.refill(data.of("keypairs", "environment", Number(environment.select.value)));
      const lacks = [];
      if (!data.list("environments").length) lacks.push(h("span", {}, "There is no environment yet: make one on the page ", h("a", { href: "#/networks" }, "Networks"), ". "));
      if (!data.list("flavors").length) lacks.push("The operator offers no flavor yet. ");
      if (!data.list("images").length) lacks.push("The operator offers no image yet. ");
      swap(missing, lacks);
    },
  };
  return page;
}
