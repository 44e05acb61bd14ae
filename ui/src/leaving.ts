// The first close of the window explains that contributing goes on in the tray.

import { confirmed } from "./dialog";
import { h } from "./dom";
import { engine } from "./engine";
import { t } from "./i18n";
import type { View } from "./ipc";
import { act } from "./store";

let isAsking = false;

export function askBeforeTheFirstClose(view: View): void {
  if (!view.is_closing || isAsking) return;
  isAsking = true;
  const question = {
    id: "closing",
    title: t("closing.title"),
    body: [h("p", {}, t("closing.body"))],
    yes: t("closing.yes"),
    no: t("closing.no"),
  };
  void confirmed(question)
    .then((isYes) => act(isYes ? engine.closeWindow : engine.stay))
    .finally(() => (isAsking = false));
}
