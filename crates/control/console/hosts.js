// Hosts, for operators: how they are, whether VMs may be placed on them, and the token that enrols one.

import { badge, choices, field, h, mebibytes, time } from "./dom.js";
import { dialogForm, pick } from "./forms.js";
import { HostFeed, hostState } from "./hostfeed.js";
import { table } from "./table.js";

/** The token is in this dialog and nowhere else: it is not shown again. */
function showToken(host, { token, expires_at: until }) {
  const text = h("textarea", { readonly: true, rows: 3, spellcheck: "false", "aria-label": "Token" });
  text.value = token;
  const close = h("button", { class: "main", onclick: () => dialog.close() }, "Done");
  const dialog = h(
    "dialog",
    { "aria-label": `Token of ${host}`, onclose: () => dialog.remove() },
    h("h2", {}, `Token of ${host}`),
    h("p", {}, "It enrols the host's agent once, and is not shown again. It ends ", time(until), "."),
    text,
    h("div", { class: "actions" }, h("button", { class: "plain", onclick: () => (text.select(), navigator.clipboard?.writeText(token)) }, "Copy"), close),
  );
  document.body.append(dialog);
  dialog.showModal();
  text.select();
}

export function hostsPage(context) {
  const { data, session } = context;
  const region = h("select", { "aria-label": "Region", onchange: () => feed.follow(region.value) });
  const feed = new HostFeed(session, () => draw(), context.tell);
  const make = async (host) => showToken(host, await session.call("POST", `${feed.path(host)}/token`));
  const drain = (host) =>
    context.act(async () => {
      await session.call("PUT", `${feed.path(host.name)}/drain`, { body: { drain: host.closed !== "draining" } });
      await feed.again();
    });
  const forget = async (host) => {
    const question = `Declare the host ${host.name} dead? Everything it had is given to others: do it only if it is switched off.`;
    if (await context.confirm(question, "Declare dead")) {
      await context.act(async () => {
        await session.call("DELETE", feed.path(host.name));
        await feed.again();
      });
    }
  };
  const button = (host, word, act, more = {}) =>
    h("button", { class: "plain", "data-focus": `${word}-${host.name}`, "aria-label": `${word} ${host.name}`, onclick: act, ...more }, word);
  const list = table({
    caption: "Hosts",
    key: (host) => host.name,
    text: (host) => [host.name, host.pod ?? "", hostState(host), host.gpu_model ?? ""].join(" "),
    empty: "This region has no hosts yet.",
    columns: [
      { title: "Name", cell: (host) => host.name },
      { title: "State", cell: (host) => badge(hostState(host)) },
      { title: "Pod", cell: (host) => host.pod ?? "" },
      { title: "VFs", class: "number", cell: (host) => `${host.vfs_used} / ${host.vfs}` },
      { title: "GPUs", class: "number", cell: (host) => (host.gpus ? `${host.gpus_used} / ${host.gpus} ${host.gpu_model ?? ""}` : "") },
      { title: "CPUs", class: "number", cell: (host) => `${host.used.vcpus} / ${host.total.vcpus}` },
      { title: "Memory", class: "number", cell: (host) => `${mebibytes(host.used.ram_mib)} / ${mebibytes(host.total.ram_mib)}` },
      {
        title: "Actions",
        class: "right",
        cell: (host) => h(
          "div",
          { class: "actions" },
          button(host, host.closed === "draining" ? "Open" : "Drain", () => drain(host)),
          button(host, "Token", () => context.act(() => make(host.name))),
          button(host, "Declare dead", () => forget(host), { class: "plain danger" }),
        ),
      },
    ],
  });
  const enrol = () => {
    const name = h("input", { required: true, maxlength: 63, spellcheck: "false" });
    const where = pick("Region", data.list("regions"));
    where.select.value = region.value;
    dialogForm("Enrol a host", {
      word: "Make token",
      fields: [field("Host", name, "The name it is to have."), where.element],
      send: async () => ({ host: name.value, ...(await session.call("POST", `/v1/regions/${where.select.value}/hosts/${encodeURIComponent(name.value)}/token`)) }),
      done: (made) => showToken(made.host, made),
    })();
  };
  function draw() {
    if (feed.loaded) list.show(feed.hosts);
  }
  return {
    element: h("div", {}, h("div", { class: "title" }, h("h1", {}, "Hosts"), region, h("button", { class: "main", onclick: enrol }, "Enrol a host")), list.element),
    update() {
      const regions = data.list("regions");
      if (region.options.length !== regions.length) {
        choices(region, regions.map(({ name }) => [name, name]));
        if (regions.length) feed.follow(region.value);
      }
    },
    close: () => feed.stop(),
  };
}
