// What can be taken off this computer: the slices that were fetched, or everything.

import { confirmed } from "../dialog";
import { button, h, say } from "../dom";
import { engine } from "../engine";
import { bytes, t } from "../i18n";
import { act, ask, lastView } from "../store";

/// Deletes the slices if that is meant; says what came of it.
async function deleteSlices(): Promise<string> {
  const taken = await ask(engine.slicesBytes);
  if (taken === null) return "";
  if (taken === 0) return t("delete.slices.none");
  const size = bytes(taken);
  const question = {
    id: "delete-slices",
    title: t("delete.slices.title"),
    body: [h("p", { id: "delete-slices-size" }, t("delete.slices.body", { size }))],
    yes: t("delete.yes"),
    no: t("cancel"),
    isGrave: true,
  };
  const isDone = (await confirmed(question)) && (await act(engine.deleteSlices));
  return isDone ? t("delete.slices.done", { size }) : "";
}

async function removeEverything(): Promise<void> {
  // One that is not open may have no backup either.
  const isAtRisk = lastView()?.engine.wallet.backed_up !== true;
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
  const said = h("p", { id: "deleted", role: "status", class: "small" });
  const slices = async (): Promise<void> => say(said, await deleteSlices());
  return h(
    "section",
    { class: "card" },
    h("h3", {}, t("delete.title")),
    h("p", { class: "small" }, t("delete.help")),
    h(
      "div",
      { class: "row" },
      button("delete-slices-ask", t("delete.slices"), slices, "quiet"),
      button("remove-ask", t("remove"), removeEverything, "quiet grave"),
    ),
    said,
  );
}
