// The console: signing in, the frame around all pages, and which page is shown (by the address's
// fragment, so that "back" works and a page can be bookmarked).

import { Session } from "./api.js";
import { Data } from "./data.js";
import { h, swap } from "./dom.js";
import { eventsPage } from "./events.js";
import { groupsPage } from "./groups.js";
import { hostsPage } from "./hosts.js";
import { networksPage } from "./networks.js";
import { newVmPage } from "./newvm.js";
import { overviewPage } from "./overview.js";
import { vmPage, vmsPage } from "./vms.js";

const PAGES = [
  { path: "overview", title: "Overview", page: overviewPage },
  { path: "networks", title: "Networks", page: networksPage },
  { path: "vms", title: "VMs", page: vmsPage },
  { path: "groups", title: "Groups", page: groupsPage },
  { path: "events", title: "Events", page: eventsPage },
  { path: "hosts", title: "Hosts", page: hostsPage, operators: true },
];

const notices = h("div", { class: "notices", role: "alert" });

/** Tell the user something that went wrong: a problem's own words. */
function tell(error) {
  const close = h("button", { class: "plain", "aria-label": "Dismiss", onclick: () => notice.remove() }, "×");
  const notice = h("div", { class: "notice" }, h("strong", {}, error.title ?? "The console failed"), h("p", {}, error.message), close);
  notices.prepend(notice);
  while (notices.children.length > 3) notices.lastChild.remove();
}

/** Ask before something that cannot be taken back. */
function confirm(question, word) {
  return new Promise((answer) => {
    const dialog = h(
      "dialog",
      { "aria-label": question, onclose: () => (dialog.remove(), answer(dialog.returnValue === "yes")) },
      h("p", {}, question),
      h("div", { class: "actions" },
        h("button", { class: "plain", onclick: () => dialog.close("no") }, "Cancel"),
        h("button", { class: "danger", "data-confirm": "", onclick: () => dialog.close("yes") }, word)),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

function signIn(why) {
  document.title = "Sign in · Lanekeeper";
  const key = h("input", { id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true, placeholder: "lk_…" });
  const told = h("p", { class: "problem", role: "alert" }, why ?? "");
  const button = h("button", { class: "main" }, "Sign in");
  const form = h(
    "form",
    {
      class: "sign-in",
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        told.textContent = "";
        const session = new Session(key.value.trim(), null);
        try {
          await session.open();
          start(session);
        } catch (error) {
          told.textContent = error.message;
          button.disabled = false;
          key.focus();
        }
      },
    },
    h("h1", {}, h("img", { src: "/console/icon.svg", alt: "", width: 28, height: 28 }), "Lanekeeper"),
    h("label", { for: "key" }, "API key"),
    key,
    h("small", {}, "It stays in this tab and is forgotten when the tab is closed. The first operator's is in operator.key, in the server's data directory."),
    told,
    button,
  );
  swap(document.body, h("main", { class: "gate" }, form));
  key.focus();
}

/** The organizations that an operator may work in. */
async function organizations(session, choose) {
  const { items } = await session.all("/v1/organizations");
  const select = h("select", { "aria-label": "Organization", onchange: () => choose(select.value) },
    items.map(({ name }) => h("option", { value: name, selected: name === session.organization }, name)));
  return select;
}

function start(session) {
  const state = h("span", { class: "live busy", role: "status" }, "connecting");
  const main = h("main", { id: "main", tabindex: "-1" });
  const links = PAGES.filter((page) => !page.operators || session.operator).map((page) => ({
    ...page,
    link: h("a", { href: `#/${page.path}` }, page.title),
  }));
  const whose = h("span", { class: "whose" }, session.organization);
  let shown = null;
  let failing = false;

  const data = new Data(session, {
    changed: () => {
      failing = false;
      swapState("live");
      shown?.update();
    },
    state: (now) => swapState(now),
    failed: (error) => {
      // Once: it is tried again by itself.
      if (!failing) tell(error);
      failing = true;
    },
  });

  function swapState(now) {
    if (state.textContent === now) return;
    state.textContent = now;
    state.className = `live ${now === "live" ? "good" : "warn"}`;
  }

  function end(why) {
    shown?.close?.();
    data.stop();
    window.removeEventListener("hashchange", route);
    notices.replaceChildren();
    return why;
  }

  session.ended = (why) => {
    session.ended = () => {};
    session.close();
    signIn(end(why));
  };

  const context = {
    session,
    data,
    tell,
    confirm,
    go: (path) => (location.hash = `#/${path}`),
    /** Do something; tell what was refused. Gives back whether it was done. */
    async act(work) {
      try {
        await work();
        return true;
      } catch (error) {
        tell(error);
        return false;
      }
    },
  };

  function route() {
    const [path, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
    const here = links.find((page) => page.path === path) ?? links[0];
    shown?.close?.();
    for (const { link, path: its } of links) {
      if (its === here.path) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    let make = here.page;
    if (here.path === "vms" && rest[0] === "new") make = newVmPage;
    else if (here.path === "vms" && rest[0]) make = vmPage;
    document.title = `${here.title} · Lanekeeper`;
    shown = make(context, rest[0]);
    swap(main, shown.element);
    shown.update();
    main.scrollTop = 0;
  }

  const top = h(
    "header",
    {},
    state,
    whose,
    h("span", { class: "role" }, session.role),
    h("button", { class: "plain", onclick: () => session.ended("") }, "Sign out"),
  );
  const side = h(
    "nav",
    { class: "side", "aria-label": "Pages" },
    h("p", { class: "brand" }, h("img", { src: "/console/icon.svg", alt: "", width: 22, height: 22 }), "Lanekeeper"),
    links.map(({ link }) => link),
  );
  const skip = h("a", { class: "skip", href: "#main", onclick: (event) => (event.preventDefault(), main.focus()) }, "To the content");
  swap(document.body, skip, h("div", { class: "frame" }, side, top, main), notices);

  if (session.operator) {
    organizations(session, (name) => {
      const other = new Session(session.key, name);
      end();
      other.open().then(() => start(other), (error) => signIn(error.message));
    }).then((select) => whose.replaceWith(select), tell);
  }
  window.addEventListener("hashchange", route);
  route();
}

const kept = Session.kept();
if (kept) {
  kept.open().then(
    () => start(kept),
    (error) => {
      // A server that is away for a moment does not sign anybody out.
      if (error.status === 401) kept.close();
      signIn(error.message);
    },
  );
} else {
  signIn();
}
