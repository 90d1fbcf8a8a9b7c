// Makes elements. Text becomes text nodes and attributes are set one by one, never parsed as HTML, so
// that no name that somebody chose can be anything but a name. The server's Content-Security-Policy
// (require-trusted-types-for) makes the browser refuse the other ways.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element: h("button", { class: "plain", onclick: act }, "Stop"). */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

let fields = 0;

/** A labelled field. `control` is an input, a select or a textarea. */
export function field(label, control, hint) {
  control.id ||= `field-${++fields}`;
  const told = hint ? h("small", { id: `${control.id}-hint` }, hint) : null;
  if (told) control.setAttribute("aria-describedby", told.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, told);
}

/** The options of a select, chosen anew but with the choice kept if it is still there. */
export function choices(select, options) {
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => h("option", { value }, text)));
  if (options.some(([value]) => String(value) === chosen)) select.value = chosen;
}

/** Exchanges what is in `parent`; whatever had the focus and is still there keeps it. */
export function swap(parent, ...children) {
  const focus = parent.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  parent.replaceChildren(...children.flat(2).filter(Boolean));
  if (focus !== undefined) parent.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
}

/** A facts list: pairs of a term and what it is. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, shown.map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));
}

/** A point in time, as the reader's clock has it. */
export function time(text) {
  const at = new Date(text);
  const today = at.toDateString() === new Date().toDateString();
  const shown = at.toLocaleString(undefined, today ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "short" });
  return h("time", { datetime: text, title: at.toString() }, shown);
}

/** MiB, as people say it. */
export function mebibytes(mib) {
  return mib % 1024 === 0 ? `${mib / 1024} GiB` : `${mib} MiB`;
}

/** Mbit/s, as people say it. */
export function megabits(rate) {
  return rate >= 1000 ? `${rate / 1000} Gb/s` : `${rate} Mb/s`;
}

/** A flavor in a line. */
export function flavorWords(flavor) {
  const parts = [`${flavor.vcpus} vCPU`, mebibytes(flavor.ram_mib)];
  if (flavor.disk_gib) parts.push(`${flavor.disk_gib} GiB disk`);
  if (flavor.gpus) parts.push(`${flavor.gpus.count} × ${flavor.gpus.model}`);
  if (flavor.vfs) parts.push(`${flavor.vfs.count} VF at ${megabits(flavor.vfs.rate_mbps)}`);
  return parts.join(" · ");
}

const TONES = {
  ACTIVE: "good", SHUTOFF: "calm", ERROR: "bad", DELETING: "calm",
  CREATING: "busy", BUILD: "busy", STOPPING: "busy", STARTING: "busy", REBOOTING: "busy",
  info: "calm", warning: "warn", error: "bad",
  alive: "good", draining: "warn", lost: "bad", free: "calm", claimed: "good",
};

/** A status in its colour; the word is always there too. */
export function badge(status) {
  return h("span", { class: `badge ${TONES[status] ?? "calm"}` }, status);
}

/** A bar that shows a part of a whole. */
export function meter(label, used, limit) {
  const most = limit ?? null;
  const bar = most === null ? null : h("meter", { min: 0, max: Math.max(most, 1), value: used, high: most * 0.9, "aria-label": label });
  const words = most === null ? `${used}` : `${used} of ${most}`;
  return h("div", { class: "meter" }, h("span", {}, label), h("strong", {}, words), bar);
}
