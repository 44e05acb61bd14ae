// The wallet: its address, its phrase, the ways to bring it back, and the claim of what it is owed.

import { h } from "../dom";
import { t } from "../i18n";
import { recovery } from "../recovery";
import type { Part } from "../store";
import { address } from "./address";
import { claim } from "./claim";
import { password, unlock } from "./password";
import { phrase } from "./phrase";
import { restore } from "./restore";

export function walletPage(): Part {
  const parts = [recovery(true), unlock(), address(), phrase(), claim(), restore(), password()];
  const root = h(
    "div",
    { class: "page" },
    h("h2", { tabindex: -1 }, t("nav.wallet")),
    ...parts.map((part) => part.root),
  );
  return {
    root,
    update(view) {
      for (const part of parts) part.update(view);
    },
  };
}
