// The picture of a fabric, as SVG. Far away, a pod is a box of hosts, each a tile that is filled as far
// as its VFs are claimed. Near, a host is a card of PFs, each a row of VFs, under the leaves that its
// PFs are cabled to. State is told by colour and by form: a claimed VF is full, a free one hollow, one
// of a host that takes no more is struck through, one of a lost host is crossed out.

import { s } from "./dom.js";
import { hostState } from "./hostfeed.js";

/** Most hosts that are drawn near. */
export const NEAR = 24;
const NO_POD = "no pod";

const TILE = 16;
const TILE_GAP = 3;
const CELL = 11;
const CELL_GAP = 3;
const PER_ROW = 16;
const PAD = 10;
const LABEL = 56;

/** Hosts by pod, in the order of their names. */
export function pods(hosts) {
  return [...Map.groupBy(hosts, (host) => host.pod ?? NO_POD)].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
}

/** Something that can be chosen by mouse and by keyboard. */
function choosable(attributes, choose, ...children) {
  const key = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose();
  };
  return s("g", { tabindex: 0, role: "button", ...attributes, onclick: choose, onkeydown: key }, ...children);
}

function picture(width, height, label, ...children) {
  return s("svg", { class: "fabric", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label }, ...children);
}

/** All hosts, small. `chosen` is a host's name. */
export function far(hosts, { width, chosen, choose, zoom }) {
  const columns = Math.max(1, Math.floor((width - 2 * PAD + TILE_GAP) / (TILE + TILE_GAP)));
  const parts = [];
  let y = 0;
  for (const [pod, members] of pods(hosts)) {
    const rows = Math.ceil(members.length / columns);
    const height = 30 + rows * (TILE + TILE_GAP) + PAD - TILE_GAP;
    parts.push(
      s("rect", { class: "pod", x: 0.5, y: y + 0.5, width: width - 1, height, rx: 6 }),
      choosable({ class: "zoom", "aria-label": `Look at pod ${pod} from near`, "data-focus": `pod-${pod}` }, () => zoom(pod),
        s("rect", { class: "hit", x: 4, y: y + 4, width: 240, height: 22, rx: 4 }),
        s("text", { x: PAD, y: y + 19, class: "name" }, pod, s("tspan", { class: "dim", dx: 8 }, `${members.length} hosts — look closer`))),
    );
    members.forEach((host, i) => {
      const x = PAD + (i % columns) * (TILE + TILE_GAP);
      parts.push(tile(host, x, y + 30 + Math.floor(i / columns) * (TILE + TILE_GAP), host.name === chosen, () => choose(host.name)));
    });
    y += height + 10;
  }
  return picture(width, y, "The fabric: hosts by pod", parts);
}

function tile(host, x, y, chosen, choose) {
  const state = hostState(host);
  const part = host.vfs ? host.vfs_used / host.vfs : 0;
  const full = Math.round(part * (TILE - 2));
  const words = `${host.name}: ${state}, ${host.vfs_used} of ${host.vfs} VFs claimed`;
  return choosable(
    { class: `tile ${state}${chosen ? " chosen" : ""}`, "aria-label": words, "data-host": host.name, "data-focus": `host-${host.name}` },
    choose,
    s("title", {}, words),
    s("rect", { class: "track", x, y, width: TILE, height: TILE, rx: 3 }),
    full ? s("rect", { class: "full", x: x + 1, y: y + TILE - 1 - full, width: TILE - 2, height: full, rx: 2 }) : null,
    mark(state, x, y, TILE),
  );
}

/** What tells a state without its colour. */
function mark(state, x, y, size) {
  const [a, b, c, d] = [x + 2, y + 2, x + size - 2, y + size - 2];
  if (state === "lost") return s("path", { class: "mark", d: `M${a} ${b}L${c} ${d}M${c} ${b}L${a} ${d}` });
  if (state === "draining") return s("path", { class: "mark", d: `M${a} ${d}L${c} ${b}` });
  return null;
}

/** Where things of a host's card are, before anything is drawn. */
function measure(host, detail) {
  const nics = detail?.nics ?? [];
  const widest = Math.min(PER_ROW, Math.max(8, ...nics.map((nic) => nic.vfs)));
  let height = 34;
  const rows = nics.map((nic) => {
    const at = height;
    height += Math.max(1, Math.ceil(nic.vfs / PER_ROW)) * (CELL + CELL_GAP) + 4;
    return { nic, at };
  });
  return { host, detail, rows, width: LABEL + widest * (CELL + CELL_GAP) + 2 * PAD, height: Math.max(height, 54) + 4 };
}

/** A few hosts with their PFs and VFs. `details` are their NICs and VFs, as far as they are known. */
export function near(hosts, details, { width, chosen, choose }) {
  const measured = new Map(hosts.map((host) => [host.name, measure(host, details.get(host.name))]));
  const least = Math.max(170, ...[...measured.values()].map((one) => one.width));
  const columns = Math.max(1, Math.floor((width - PAD) / (least + PAD)));
  const card = Math.max(least, Math.floor((width - PAD) / columns) - PAD);
  const parts = [];
  let y = 0;
  for (const [pod, members] of pods(hosts)) {
    const leaves = leavesOf(members, details);
    const top = y + 30;
    const cardsTop = leaves.length ? top + 56 : top;
    const placed = place(members.map((host) => measured.get(host.name)), { columns, card, x: PAD, y: cardsTop });
    const bottom = placed.bottom;
    parts.push(
      s("rect", { class: "pod", x: 0.5, y: y + 0.5, width: width - 1, height: bottom - y, rx: 6 }),
      s("text", { x: PAD, y: y + 19, class: "name" }, pod),
      cables(leaves, placed.cards, { top, width, card, chosen }),
      placed.cards.map((one) => drawHost(one, card, one.host.name === chosen, choose)),
    );
    y = bottom + 10;
  }
  return picture(width, y, "The fabric: leaves, hosts, PFs and VFs", parts.flat());
}

function place(cards, { columns, card, x, y }) {
  const made = [];
  for (let row = 0; row < cards.length; row += columns) {
    const these = cards.slice(row, row + columns);
    these.forEach((one, i) => made.push({ ...one, x: x + i * (card + PAD), y }));
    y += Math.max(...these.map((one) => one.height)) + PAD;
  }
  return { cards: made, bottom: y };
}

/** The leaves of hosts, each with the hosts that are cabled to it. */
function leavesOf(hosts, details) {
  const leaves = new Map();
  for (const host of hosts) {
    for (const nic of details.get(host.name)?.nics ?? []) {
      if (!nic.leaf) continue;
      if (!leaves.has(nic.leaf)) leaves.set(nic.leaf, new Set());
      leaves.get(nic.leaf).add(host.name);
    }
  }
  return [...leaves].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
}

function cables(leaves, cards, { top, width, card, chosen }) {
  const step = (width - 2 * PAD) / Math.max(leaves.length, 1);
  const wide = Math.min(step - 8, 130);
  const lines = [];
  const boxes = [];
  leaves.forEach(([leaf, hosts], i) => {
    const middle = PAD + step * (i + 0.5);
    const d = (of) => of.map((one) => `M${middle} ${top + 20}L${one.x + (card * (i + 0.5)) / leaves.length} ${one.y}`).join("");
    const cabled = cards.filter((one) => hosts.has(one.host.name));
    lines.push(s("path", { class: "cable", d: d(cabled) }));
    const lit = cabled.filter((one) => one.host.name === chosen);
    if (lit.length) lines.push(s("path", { class: "cable lit", d: d(lit) }));
    boxes.push(
      s("g", {}, s("title", {}, `leaf ${leaf}: ${hosts.size} of these hosts`),
        s("rect", { class: "leaf", x: middle - wide / 2, y: top, width: wide, height: 20, rx: 4 }),
        s("text", { class: "leaf-name", x: middle, y: top + 14, "text-anchor": "middle" }, clip(leaf, wide / 7))),
    );
  });
  return [lines, boxes].flat();
}

/** SVG's text does not end by itself. */
function clip(text, most) {
  return text.length > most ? `${text.slice(0, Math.max(1, Math.floor(most) - 1))}…` : text;
}

function drawHost({ host, detail, rows, x, y, height }, card, chosen, choose) {
  const state = hostState(host);
  const words = `${host.name}: ${state}, ${host.vfs_used} of ${host.vfs} VFs claimed`;
  return choosable(
    { class: `host ${state}${chosen ? " chosen" : ""}`, "aria-label": words, "data-host": host.name, "data-focus": `host-${host.name}` },
    () => choose(host.name),
    s("rect", { class: "card", x, y, width: card, height, rx: 5 }),
    s("text", { class: "name", x: x + PAD, y: y + 19 }, clip(host.name, (card - 80) / 7)),
    s("text", { class: "state", x: x + card - PAD, y: y + 19, "text-anchor": "end" }, state),
    detail ? null : s("text", { class: "dim", x: x + PAD, y: y + 42 }, "looking…"),
    rows.map(({ nic, at }) => [
      s("text", { class: "dim", x: x + PAD, y: y + at + 9 }, clip(nic.name, LABEL / 7)),
      (detail.vfs.get(nic.name) ?? []).map((vf, i) =>
        cell(vf, state, x + PAD + LABEL + (i % PER_ROW) * (CELL + CELL_GAP), y + at + Math.floor(i / PER_ROW) * (CELL + CELL_GAP))),
    ]).flat(2),
  );
}

/** What a VF is: its use, unless its host takes no more or is lost. */
export function vfState(vf, state) {
  if (state === "lost") return "lost";
  if (vf.state === "claimed") return "claimed";
  return state === "draining" ? "closed" : "free";
}

function cell(vf, hostIs, x, y) {
  const state = vfState(vf, hostIs);
  return s(
    "g",
    { class: `vf ${state}`, "data-vf": `${vf.host}/${vf.nic}/${vf.vf}` },
    s("title", {}, `${vf.nic} VF ${vf.vf}: ${state}${vf.placement ? `, ${vf.placement}` : ""}`),
    s("rect", { x: x + 0.5, y: y + 0.5, width: CELL - 1, height: CELL - 1, rx: 2 }),
    mark(state === "closed" ? "draining" : state, x, y, CELL),
  );
}

/** What the forms and colours mean. */
export function legend() {
  const one = (state, words, form) => [
    s("g", { class: `vf ${state}` }, s("rect", { x: 0.5, y: 2.5, width: CELL - 1, height: CELL - 1, rx: 2 }), mark(form, 0, 2, CELL)),
    words,
  ];
  const kinds = [["free", "free"], ["claimed", "claimed"], ["closed", "closed: its host is drained", "draining"], ["lost", "lost: its host is not heard of", "lost"]];
  return kinds.map(([state, words, form]) => {
    const [sign, text] = one(state, words, form);
    return { sign: s("svg", { class: "fabric", width: 12, height: 15, "aria-hidden": "true" }, sign), text };
  });
}
