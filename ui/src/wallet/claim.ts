// A claim: the wallet signs what it wants to be paid, and the gateway takes it.

import { h, refill, say } from "../dom";
import { engine } from "../engine";
import { kvr, nano, t } from "../i18n";
import { ask, type Part } from "../store";

/// Nano-KVR of a KVR amount as typed, with a point or a comma; `undefined` for anything else.
export function nanoOf(text: string): string | undefined {
  const found = /^(\d{1,12})(?:[.,](\d{1,9}))?$/.exec(text.trim());
  if (found === null) return undefined;
  const [, whole = "0", part = ""] = found;
  return (BigInt(whole) * 1_000_000_000n + BigInt(part.padEnd(9, "0"))).toString();
}

/// The claim's own words are what was signed.
function signed(text: string): HTMLElement {
  return h("div", {}, h("p", { class: "good" }, t("claim.done")), h("p", { id: "claim-text", class: "mono" }, text));
}

export function claim(): Part {
  const amount = h("input", {
    id: "claim-amount",
    type: "text",
    inputmode: "decimal",
    "aria-describedby": "claim-help",
  });
  const help = h("p", { id: "claim-help", class: "small" });
  const said = h("div", { id: "claimed", role: "status" });
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const wish = amount.value.trim() === "" ? null : nanoOf(amount.value);
    if (wish === undefined) return refill(said, h("p", { class: "warning" }, t("claim.invalid")));
    refill(said);
    const made = await ask(() => engine.claim(wish));
    if (made === null) return;
    amount.value = "";
    refill(said, signed(made));
  };
  const form = h(
    "form",
    { id: "claim", class: "card", submit },
    h("h3", {}, t("claim.title")),
    h("p", {}, t("claim.body")),
    h("div", { class: "field" }, h("label", { for: "claim-amount" }, t("claim.amount")), amount, help),
    h("button", { id: "claim-now", type: "submit" }, t("claim.yes")),
    said,
  );
  return {
    root: form,
    update({ engine: { wallet, account } }) {
      form.hidden = wallet.kind !== "ready" || account === null;
      const owed = account?.pending_nano_kvr ?? "0";
      say(help, t("claim.help", { kvr: kvr(owed, 9), nano: nano(owed) }));
    },
  };
}
