// Joining a network: a code that is pasted or read from a file, and the invitation in it that waits for a yes.

import { button, h, onChange, say } from "../dom";
import { engine } from "../engine";
import { t } from "../i18n";
import type { Network } from "../ipc";
import { act, type Part } from "../store";

/// Longest file that can be a join code.
const CODE_FILE_BYTES_MAX = 16 * 1024;

function invitation(): { root: HTMLElement; show: (offer: Network | null) => void } {
  const operator = h("dd", { id: "offer-operator", class: "mono" });
  const gateways = h("dd", { id: "offer-gateways", class: "mono" });
  const root = h(
    "section",
    { id: "offer", class: "card", hidden: true, "aria-live": "polite" },
    h("h3", {}, t("offer.title")),
    h("p", {}, t("offer.body")),
    h("dl", {}, h("dt", {}, t("offer.operator")), operator, h("dt", {}, t("offer.gateways")), gateways),
    h(
      "div",
      { class: "row" },
      button("accept", t("offer.yes"), () => act(engine.accept)),
      button("decline", t("offer.no"), () => act(engine.decline), "quiet"),
    ),
  );
  return {
    root,
    show: onChange((offer) => {
      root.hidden = offer === null;
      say(operator, offer?.operator ?? "");
      say(gateways, offer?.gateways.join(", ") ?? "");
    }),
  };
}

export function joining(): Part {
  const placeholder = "kvasir://join#…";
  const code = h("textarea", { id: "code", rows: 3, spellcheck: "false", autocomplete: "off", placeholder });
  const look = async (text: string): Promise<void> => {
    if (await act(() => engine.offer(text))) code.value = "";
  };
  const read = async (): Promise<void> => {
    const chosen = file.files?.[0];
    if (chosen !== undefined) await look(await chosen.slice(0, CODE_FILE_BYTES_MAX + 1).text());
    file.value = "";
  };
  const file = h("input", { id: "file", type: "file", change: () => void read() });
  const form = h(
    "form",
    {
      id: "join",
      class: "card",
      hidden: true,
      submit: (event) => {
        event.preventDefault();
        void look(code.value);
      },
    },
    h("h3", {}, t("join.title")),
    h("label", { for: "code" }, t("join.code")),
    code,
    h(
      "div",
      { class: "row" },
      h("button", { id: "read", type: "submit" }, t("join.read")),
      h("label", { class: "small file" }, t("join.file"), " ", file),
    ),
  );
  const offer = invitation();
  return {
    root: h("div", {}, offer.root, form),
    update({ engine: status }) {
      offer.show(status.offer);
      form.hidden = status.network !== null || status.offer !== null;
    },
  };
}
