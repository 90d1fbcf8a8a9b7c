// The first page: for operators the fabric, for tenants what they have and what they may have.

import { badge, choices, facts, h, mebibytes, megabits, meter, swap, time } from "./dom.js";
import { subject } from "./events.js";
import { NEAR, far, legend, near, pods, vfState } from "./fabric.js";
import { HostFeed, hostState } from "./hostfeed.js";
import { table } from "./table.js";
import { vmLink } from "./vms.js";

export function overviewPage(context) {
  return context.session.operator ? fabricPage(context) : tenantPage(context);
}

function count(label, value, tone) {
  return h("div", { class: `count ${tone ?? ""}` }, h("strong", {}, String(value)), h("span", {}, label));
}

const sum = (items, of) => items.reduce((all, item) => all + of(item), 0);

function counts(hosts) {
  const of = (state) => hosts.filter((host) => hostState(host) === state).length;
  return [
    count("hosts", hosts.length),
    count("alive", of("alive"), "good"),
    count("draining", of("draining"), of("draining") ? "warn" : ""),
    count("lost", of("lost"), of("lost") ? "bad" : ""),
    count("VFs claimed", `${sum(hosts, (host) => host.vfs_used)} / ${sum(hosts, (host) => host.vfs)}`),
    count("GPUs claimed", `${sum(hosts, (host) => host.gpus_used)} / ${sum(hosts, (host) => host.gpus)}`),
  ];
}

function fabricPage(context) {
  const { data, session } = context;
  const region = h("select", { "aria-label": "Region", onchange: () => feed.follow(region.value) });
  const numbers = h("div", { class: "counts" });
  const picture = h("div", { class: "picture" });
  const where = h("div", { class: "where" });
  const side = h("aside", { class: "aside", "aria-live": "polite", "aria-label": "The chosen host" });
  let chosen = null;
  let pod = null;
  let page = 0;
  let drawn = "";
  const feed = new HostFeed(session, () => draw(), context.tell);
  const sizes = new ResizeObserver(() => draw());
  sizes.observe(picture);

  function choose(name) {
    chosen = name;
    draw();
  }

  function zoom(to) {
    [pod, page] = [to, 0];
    draw();
  }

  function turn(by) {
    page += by;
    draw();
  }

  /** The hosts that are drawn near: all, if they are few; else a page of a pod's. */
  function looked() {
    if (feed.hosts.length <= NEAR) return feed.hosts;
    const members = pods(feed.hosts).find(([name]) => name === pod)?.[1];
    if (!members) return null;
    page = Math.max(0, Math.min(page, Math.ceil(members.length / NEAR) - 1));
    return members.slice(page * NEAR, (page + 1) * NEAR);
  }

  function path(hosts) {
    if (feed.hosts.length <= NEAR || !hosts) {
      const more = feed.more ? "There are more hosts than are shown here." : feed.hosts.length > NEAR ? "Each tile is a host, filled as far as its VFs are claimed." : "";
      return swap(where, h("p", { class: "hint" }, more));
    }
    const all = sum(pods(feed.hosts).filter(([name]) => name === pod), ([, members]) => members.length);
    swap(
      where,
      h("button", { class: "plain", "data-focus": "out", onclick: () => zoom(null) }, "All pods"),
      h("span", {}, `${pod}: hosts ${page * NEAR + 1}–${page * NEAR + hosts.length} of ${all}`),
      h("button", { class: "plain", "data-focus": "back", disabled: page === 0, onclick: () => turn(-1) }, "Previous"),
      h("button", { class: "plain", "data-focus": "on", disabled: (page + 1) * NEAR >= all, onclick: () => turn(1) }, "Next"),
    );
  }

  function draw() {
    if (!feed.loaded) return;
    swap(numbers, counts(feed.hosts));
    const hosts = looked();
    const host = feed.hosts.find((one) => one.name === chosen);
    const details = feed.look([...new Set([...(hosts ?? []), ...(host ? [host] : [])])]);
    path(hosts);
    const width = Math.max(320, picture.clientWidth);
    // A picture of a thousand hosts is drawn anew only if it would be another.
    const sign = JSON.stringify([width, chosen, pod, page, hosts ?? feed.hosts, hosts && [...details]
      .map(([name, detail]) => [name, detail.nics, [...detail.vfs]])]);
    if (sign !== drawn) {
      drawn = sign;
      const settings = { width, chosen, choose, zoom };
      if (!feed.hosts.length) swap(picture, h("p", { class: "empty" }, "This region has no hosts yet. The page Hosts makes a token that enrols one."));
      else swap(picture, hosts ? near(hosts, details, settings) : far(feed.hosts, settings));
    }
    swap(side, host ? about(context, feed, host, details.get(host.name)) : h("p", { class: "hint" }, "Choose a host to see its PFs, its VFs and who has them."));
  }

  const signs = h("ul", { class: "legend" }, legend().map(({ sign, text }) => h("li", {}, sign, text)));
  return {
    element: h("div", {}, h("div", { class: "title" }, h("h1", {}, "Fabric"), region), numbers, h("div", { class: "split" }, h("div", {}, h("div", { class: "above" }, where, signs), picture), side)),
    update() {
      const regions = data.list("regions");
      if (region.options.length !== regions.length) {
        choices(region, regions.map(({ name }) => [name, name]));
        if (regions.length) feed.follow(region.value);
      }
      if (data.loaded && !regions.length) swap(picture, h("p", { class: "empty" }, "There is no region yet: lanekeeper region create makes one."));
    },
    close() {
      feed.stop();
      sizes.disconnect();
    },
  };
}

/** Everything of the chosen host. */
function about({ data }, feed, host, detail) {
  const state = hostState(host);
  const rows = (detail?.nics ?? []).map((nic) => h(
    "section",
    { class: "nic" },
    h("h3", {}, nic.name, h("small", {}, [nic.path.replace("_", " "), nic.rail === null ? null : `rail ${nic.rail}`, nic.leaf].filter(Boolean).join(" · "))),
    h("p", { class: "hint" }, `${nic.vfs_used} of ${nic.vfs} VFs, ${megabits(nic.rate_used_mbps)} of ${megabits(nic.rate_mbps)} set aside`),
    h("table", {}, h("caption", { class: "unseen" }, `VFs of ${nic.name}`), h("tbody", {}, (detail.vfs.get(nic.name) ?? []).map((vf) => h(
      "tr",
      {},
      h("th", { scope: "row" }, `VF ${vf.vf}`),
      h("td", {}, badge(vfState(vf, state))),
      h("td", {}, placement(data, vf.placement)),
      h("td", { class: "number" }, vf.rate_mbps ? megabits(vf.rate_mbps) : ""),
    )))),
  ));
  return [
    h("h2", {}, host.name, " ", badge(state)),
    facts([
      ["Region", host.region],
      ["Pod", host.pod],
      ["CPUs", `${host.used.vcpus} of ${host.total.vcpus}`],
      ["Memory", `${mebibytes(host.used.ram_mib)} of ${mebibytes(host.total.ram_mib)}`],
      ["GPUs", host.gpus ? `${host.gpus_used} of ${host.gpus} ${host.gpu_model ?? ""}` : null],
    ]),
    ...rows,
  ];
}

/** A placement as a link, if it is a VM's of the organization that is looked at. */
function placement(data, name) {
  const id = Number(/^vm-(\d+)$/.exec(name ?? "")?.[1]);
  return data.get("vms", id) ? vmLink(data, id) : name ?? "";
}

const QUOTA = [["vms", "VMs"], ["vfs", "VFs"], ["gpus", "GPUs"], ["vcpus", "vCPUs"], ["ram_mib", "Memory (MiB)"], ["disk_gib", "Disk (GiB)"]];
const TILES = 500;

function tenantPage(context) {
  const { data, session } = context;
  const numbers = h("div", { class: "counts" });
  const quota = h("div", { class: "meters" });
  const vms = h("div");
  const news = table({
    caption: "Newest events",
    key: (event) => event.id,
    empty: "Nothing has happened yet.",
    columns: [
      { title: "When", cell: (event) => time(event.at) },
      { title: "Severity", cell: (event) => badge(event.severity) },
      { title: "Of", cell: (event) => subject(data, event) },
      { title: "What happened", cell: (event) => event.message },
    ],
  });
  let asked = null;
  let known = "";

  /** The quota is asked for again when there are other VMs. */
  async function ask() {
    const sign = data.list("vms").map((vm) => vm.id).join();
    if (asked !== null && sign === known) return;
    known = sign;
    asked = await session.call("GET", "/v1/quota").catch(() => asked);
    if (asked) swap(quota, QUOTA.map(([key, words]) => meter(words, asked.used[key], asked.limits[key])));
  }

  return {
    element: h("div", {}, h("div", { class: "title" }, h("h1", {}, "Overview"), session.changes ? h("a", { class: "button main", href: "#/vms/new" }, "New VM") : null), numbers, h("h2", {}, "In use"), quota, h("h2", {}, "VMs"), vms, h("h2", {}, "Newest events"), news.element),
    update() {
      if (!data.loaded) return;
      const all = data.list("vms");
      const of = (...statuses) => all.filter((vm) => statuses.includes(vm.status)).length;
      const bad = of("ERROR");
      swap(numbers, count("VMs", all.length), count("active", of("ACTIVE"), "good"), count("in error", bad, bad ? "bad" : ""), count("networks", data.list("networks").length), count("ports", data.list("ports").length));
      swap(vms, all.length ? environments(data, all.slice(0, TILES)) : h("p", { class: "empty" }, "There are no VMs yet."));
      news.show(data.list("events").slice(-10).reverse());
      ask();
    },
  };
}

/** VMs as tiles, by environment. */
function environments(data, vms) {
  return [...Map.groupBy(vms, (vm) => vm.environment)].map(([id, members]) => h(
    "section",
    { class: "environment" },
    h("h3", {}, data.name("environments", id)),
    h("ul", { class: "tiles" }, members.map((vm) => h("li", {}, h("a", { href: `#/vms/${vm.id}`, "data-focus": `tile-${vm.id}` }, h("strong", {}, vm.name), badge(vm.status))))),
  ));
}
