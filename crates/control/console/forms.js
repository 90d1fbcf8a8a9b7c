// What all forms have in common: they are sent once however often one clicks, and show the words of a
// refusal beside the button.

import { choices, field, h } from "./dom.js";

/** A form whose `send(once)` makes the call; `once` is an idempotency key that stays the same until
    something in the form is another, so that a lost answer does not make a second one. */
export function form({ fields, word, send, done, cancel }) {
  let once = crypto.randomUUID();
  const told = h("p", { class: "problem", role: "alert" });
  const button = h("button", { class: "main" }, word);
  const renew = () => (once = crypto.randomUUID());
  const element = h(
    "form",
    {
      class: "form",
      oninput: renew,
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        told.textContent = "";
        try {
          const made = await send(once);
          element.reset();
          renew();
          done(made);
        } catch (error) {
          told.textContent = error.message;
          // A refusal was an answer; only what was not answered is asked for again.
          if (error.status) renew();
        } finally {
          button.disabled = false;
        }
      },
    },
    fields,
    told,
    h("div", { class: "actions" }, button, cancel ? h("button", { class: "plain", type: "button", onclick: cancel }, "Cancel") : null),
  );
  return element;
}

/** A form in a dialog; gives back what opens it. */
export function dialogForm(title, options) {
  const dialog = h("dialog", { "aria-label": title });
  const close = () => dialog.close();
  const done = (made) => {
    close();
    options.done?.(made);
  };
  dialog.append(h("h2", {}, title), form({ ...options, done, cancel: close }));
  dialog.addEventListener("close", () => dialog.remove());
  return () => {
    document.body.append(dialog);
    dialog.showModal();
  };
}

/** A select of resources by name. */
export function pick(label, items, { value = (item) => item.name, words = (item) => item.name, none, hint } = {}) {
  const select = h("select", { required: !none });
  const refill = (now) => choices(select, [...(none ? [["", none]] : []), ...now.map((item) => [value(item), words(item)])]);
  refill(items);
  return { select, refill, element: field(label, select, hint) };
}
