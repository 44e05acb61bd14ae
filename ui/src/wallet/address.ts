// The wallet's address: as text, to copy, and as a QR code; and where its key is kept.

import qrcode from "qrcode-generator";
import { button, drawn, h, onChange, refill, say, sayOrHide } from "../dom";
import { t } from "../i18n";
import type { WalletStatus } from "../ipc";
import type { Part } from "../store";

/// Light around the code, in its dots; the standard asks for four.
const QUIET = 4;
const COPIED_MS = 2000;

function code(text: string): SVGElement {
  const qr = qrcode(0, "M");
  qr.addData(text);
  qr.make();
  const dots = qr.getModuleCount();
  let path = "";
  for (let y = 0; y < dots; y++)
    for (let x = 0; x < dots; x++) if (qr.isDark(y, x)) path += `M${x + QUIET} ${y + QUIET}h1v1h-1z`;
  const side = dots + 2 * QUIET;
  const box = { viewBox: `0 0 ${side} ${side}`, role: "img", "aria-label": t("address.qr"), id: "qr", class: "qr" };
  return drawn(
    "svg",
    box,
    drawn("rect", { width: side, height: side, class: "qr-page" }),
    drawn("path", { d: path, class: "qr-ink" }),
  );
}

/// The old way to copy: it needs no permission, only the click.
function copy(from: HTMLElement): boolean {
  const range = document.createRange();
  range.selectNodeContents(from);
  const selection = window.getSelection();
  selection?.removeAllRanges();
  selection?.addRange(range);
  return document.execCommand("copy");
}

export function address(): Part {
  const text = h("p", { id: "wallet", class: "mono" });
  const copied = h("span", { role: "status", class: "small" });
  const copying = button("copy", t("address.copy"), () => {
    say(copied, copy(text) ? t("address.copied") : t("address.copy_keys"));
    setTimeout(() => say(copied, ""), COPIED_MS);
  });
  const picture = h("div", { class: "qr-box" });
  const stored = h("p", { id: "stored", class: "small" });
  const row = h("div", { class: "row" }, copying, copied);
  const show = onChange((wallet: WalletStatus) => {
    const isReady = wallet.kind === "ready";
    say(text, isReady ? wallet.address : wallet.kind === "opening" ? t("address.opening") : t("address.none"));
    row.hidden = !isReady;
    refill(picture, isReady ? code(wallet.address) : null);
    const isKnown = wallet.stored !== "none" || wallet.kind === "key_missing";
    sayOrHide(stored, isKnown ? t(`stored.${wallet.stored}`) : "");
  });
  return {
    root: h("section", { class: "card" }, h("h3", {}, t("address.title")), text, row, picture, stored),
    update({ engine: { wallet } }) {
      show(wallet);
    },
  };
}
