// Shown while the wallet's key is not at hand: what is known, and the ways back to it.

import { button, h, say, sayOrHide } from "./dom";
import { engine } from "./engine";
import { t } from "./i18n";
import { act, type Part } from "./store";

/// `isHere` says whether the means are on this page, or behind a link.
export function recovery(isHere: boolean): Part {
  const lost = h("p", { id: "lost", class: "mono" });
  const heading = h("h2", { tabindex: -1 });
  const words = h("p", {});
  const retry = button("retry", t("recovery.retry"), () => act(engine.openWallet));
  const link = h("a", { id: "to-recovery", href: "#wallet" }, t("recovery.link"));
  const root = h(
    "section",
    { id: "recovery", class: "card", hidden: true, "aria-live": "polite" },
    heading,
    words,
    lost,
    h("div", { class: "row" }, retry, isHere ? null : link),
  );
  return {
    root,
    update({ engine: { wallet } }) {
      const isMissing = wallet.kind === "key_missing";
      const needsPassword = wallet.needs === "password" && wallet.stored === "password_file";
      root.hidden = wallet.kind === "ready" || wallet.kind === "opening";
      root.dataset.kind = wallet.kind;
      const kind = isMissing ? "missing" : needsPassword ? "locked" : "failed";
      say(heading, t(`recovery.${kind}.title`));
      say(words, t(`recovery.${kind}.body`));
      sayOrHide(lost, isMissing ? wallet.address : "");
      retry.hidden = needsPassword;
    },
  };
}
