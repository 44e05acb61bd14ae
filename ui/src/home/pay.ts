// What the gateway owes the wallet: KVR to five places, each nano-KVR on hover and focus, and how old the last credit is.

import { h, say } from "../dom";
import { kvr, nano, t } from "../i18n";
import type { Part } from "../store";
import { creditWords } from "../words";

export function pay(): Part {
  const pending = h("span", { id: "pending", tabindex: 0, "aria-describedby": "pending-exact" }, "–");
  const exact = h("span", { id: "pending-exact", class: "tip", role: "tooltip" });
  const credit = h("p", { id: "credit", class: "small" });
  const root = h(
    "section",
    { id: "pay", "aria-label": t("pay.label") },
    h("p", { class: "small" }, t("pay.title")),
    h(
      "p",
      { class: "amount" },
      h("span", { class: "tipped" }, pending, exact),
      " ",
      h("span", { class: "unit" }, "KVR"),
    ),
    credit,
  );
  return {
    root,
    update({ engine: { account, account_problem } }) {
      const owed = account?.pending_nano_kvr ?? null;
      say(pending, owed === null ? "–" : kvr(owed));
      pending.dataset.nano = owed ?? "";
      say(exact, owed === null ? t("pay.unknown") : t("pay.exact", { nano: nano(owed) }));
      say(credit, creditWords(account, account_problem, Date.now()));
    },
  };
}
