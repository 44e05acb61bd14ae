// What can be taken off this computer: the slices that were fetched, or everything.

import { confirmed } from "../dialog";
import { button, h } from "../dom";
import { engine } from "../engine";
import { t } from "../i18n";
import { act, lastView } from "../store";

async function deleteSlices(): Promise<void> {
  const question = {
    id: "delete-slices",
    title: t("delete.slices.title"),
    body: [h("p", {}, t("delete.slices.body"))],
    yes: t("delete.yes"),
    no: t("cancel"),
    isGrave: true,
  };
  if (await confirmed(question)) await act(engine.deleteSlices);
}

async function removeEverything(): Promise<void> {
  const wallet = lastView()?.engine.wallet;
  const isAtRisk = wallet !== undefined && wallet.kind === "ready" && !wallet.backed_up;
  const warning = h("p", { id: "remove-warning", class: "notice bad" }, t("remove.unsaved"));
  const question = {
    id: "remove",
    title: t("remove.title"),
    body: [h("p", {}, t("remove.body")), isAtRisk ? warning : null],
    yes: isAtRisk ? t("remove.yes_unsaved") : t("remove.yes"),
    no: t("cancel"),
    isGrave: true,
  };
  if (await confirmed(question)) await act(() => engine.removeEverything(isAtRisk));
}

export function deleting(): HTMLElement {
  return h(
    "section",
    { class: "card" },
    h("h3", {}, t("delete.title")),
    h("p", { class: "small" }, t("delete.help")),
    h(
      "div",
      { class: "row" },
      button("delete-slices-ask", t("delete.slices"), deleteSlices, "quiet"),
      button("remove-ask", t("remove"), removeEverything, "quiet grave"),
    ),
  );
}
