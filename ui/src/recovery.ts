// Shown while the wallet's key is not at hand: what is known, and the ways back to it.

import { button, h, say, sayOrHide } from "./dom";
import { engine } from "./engine";
import { t } from "./i18n";
import type { WalletStatus } from "./ipc";
import { act, type Part } from "./store";

/// What is told apart; the page has said already why, in its notice above.
function troubleOf(wallet: WalletStatus): "missing" | "locked" | "failed" | "other" {
  if (wallet.kind === "key_missing") return "missing";
  if (wallet.needs === "password" && wallet.stored === "password_file") return "locked";
  const isKeyring = wallet.kind === "failed" && wallet.problem.code === "keyring_unavailable";
  return isKeyring ? "failed" : "other";
}

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
      const kind = troubleOf(wallet);
      root.hidden = wallet.kind === "ready" || wallet.kind === "opening";
      root.dataset.kind = wallet.kind;
      say(heading, t(`recovery.${kind === "other" ? "failed" : kind}.title`));
      say(words, t(`recovery.${kind}.body`));
      sayOrHide(lost, wallet.kind === "key_missing" ? wallet.address : "");
      say(retry, kind === "other" ? t("recovery.again") : t("recovery.retry"));
      retry.hidden = kind === "locked";
    },
  };
}
