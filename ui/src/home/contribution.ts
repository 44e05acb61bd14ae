// The one big button with the true state behind it, the pauses, and the sentence that says why nothing is earned.

import { button, h, say } from "../dom";
import { engine } from "../engine";
import { t } from "../i18n";
import type { Status } from "../ipc";
import { act, lastView, type Part } from "../store";
import { whyWords } from "../words";

/// Whether work is wanted now.
function isOn(status: Status): boolean {
  return status.contributing && status.pause === null;
}

/// Whether anything could be contributed.
function isReady(status: Status): boolean {
  return status.wallet.kind === "ready" && status.network !== null && status.device.kind === "ready";
}

async function press(): Promise<void> {
  const status = lastView()?.engine;
  if (status === undefined) return;
  if (status.pause !== null) await act(engine.resume);
  else await act(() => engine.contribute(!status.contributing));
}

export function contribution(): Part {
  const main = button("contribute", t("contribute"), press);
  const hour = button("pause-hour", t("pause.hour"), () => act(() => engine.pause("hour")), "quiet");
  const resumed = button(
    "pause-until-resumed",
    t("pause.until_resumed"),
    () => act(() => engine.pause("until_resumed")),
    "quiet",
  );
  const pauses = h(
    "div",
    { id: "pauses", class: "row middle", role: "group", "aria-label": t("pause.label") },
    hour,
    resumed,
  );
  const why = h("p", { id: "why", "aria-live": "polite" });
  return {
    root: h("section", { id: "contribution", "aria-label": t("contribute") }, main, pauses, why),
    update({ engine: status }) {
      const words = isOn(status) ? t("stop") : status.pause !== null ? t("resume") : t("contribute");
      say(main, words);
      main.disabled = !status.contributing && status.pause === null && !isReady(status);
      pauses.hidden = !isOn(status);
      say(why, whyWords(status));
      why.dataset.code = status.why_not_earning.code;
    },
  };
}
