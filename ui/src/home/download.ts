// Before a large download: its size, the room there is, how long it takes, and a yes or no. Then its progress.

import { button, h, say } from "../dom";
import { engine } from "../engine";
import { bytes, span, t } from "../i18n";
import { act, type Part } from "../store";

export function download(): Part {
  const question = h("p", {});
  const answer = (yes: boolean): Promise<boolean> => act(() => engine.confirmDownload(yes));
  const asked = h(
    "section",
    { id: "confirm-download", class: "card", role: "alert", hidden: true },
    h("h2", {}, t("download.title")),
    question,
    h(
      "div",
      { class: "row" },
      button("download-yes", t("download.yes"), () => answer(true)),
      button("download-no", t("download.no"), () => answer(false), "quiet"),
    ),
  );
  const words = h("p", { id: "download-words", class: "small" });
  const bar = h("progress", { id: "progress", "aria-label": t("download.label") });
  const running = h("section", { id: "download", hidden: true, "aria-label": t("download.label") }, bar, words);
  return {
    root: h("div", {}, asked, running),
    update({ engine: { confirm_download: asks, download: runs } }) {
      asked.hidden = asks === null;
      if (asks !== null) {
        const args = {
          needed: bytes(asks.needed_bytes),
          free: bytes(asks.free_disk_bytes),
          cap: bytes(asks.cap_bytes),
        };
        const eta = asks.eta_s === null ? "" : ` ${t("download.eta", { span: span(asks.eta_s) })}`;
        say(question, t("download.question", args) + eta);
      }
      running.hidden = runs === null;
      if (runs === null) return;
      bar.max = runs.needed_bytes;
      bar.value = runs.done_bytes;
      const args = { done: bytes(runs.done_bytes), total: bytes(runs.needed_bytes), rate: bytes(runs.bytes_per_s) };
      const eta = runs.eta_s === null ? "" : ` ${t("download.eta", { span: span(runs.eta_s) })}`;
      const room = t("download.room", { free: bytes(runs.free_disk_bytes), cap: bytes(runs.cap_bytes) });
      say(words, `${t("download.progress", args)}${eta} ${room}`);
    },
  };
}
