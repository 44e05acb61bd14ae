// A claim: what may be claimed is asked for, the amount is shown, the wallet signs it, and the gateway takes it.

import { confirmed } from "../dialog";
import { h, refill, say } from "../dom";
import { engine } from "../engine";
import { kvr, nano, t } from "../i18n";
import type { ClaimRoom } from "../ipc";
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

/// Nano-KVR that are signed for: all that there is, or what was typed on top of what waits. A claim takes the place of
/// the one before, so that it must hold what that one does.
function sumOf(wish: string | null, room: ClaimRoom): string {
  if (wish === null || wish === "0") return wish ?? room.nano;
  return (BigInt(room.waiting_nano) + BigInt(wish)).toString();
}

/// Whether this amount is meant.
async function isMeant(amount: string, room: ClaimRoom): Promise<boolean> {
  const exact = h("p", { id: "claim-exact" }, t("claim.confirm.body", { kvr: kvr(amount, 9), nano: nano(amount) }));
  const waits = t("claim.confirm.waiting", { kvr: kvr(room.waiting_nano, 9) });
  return confirmed({
    id: "claim-confirm",
    title: t("claim.confirm.title"),
    body: [exact, room.waiting_nano === "0" ? null : h("p", { class: "small" }, waits)],
    yes: t("claim.yes"),
    no: t("cancel"),
  });
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
    const room = await ask(engine.claimRoom);
    if (room === null) return;
    const sum = sumOf(wish, room);
    // Of nothing there is nothing to confirm: the engine says what is wrong.
    if (sum !== "0" && !(await isMeant(sum, room))) return;
    const made = await ask(() => engine.claim(sum));
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
