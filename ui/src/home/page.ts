// The start page: what is owed, the one big button, why nothing is earned, and what this computer does.

import { h } from "../dom";
import { t } from "../i18n";
import { recovery } from "../recovery";
import type { Part } from "../store";
import { contribution } from "./contribution";
import { devices } from "./devices";
import { download } from "./download";
import { earnings } from "./earnings";
import { facts } from "./facts";
import { joining } from "./joining";
import { pay } from "./pay";
import { receipts } from "./receipts";

export function homePage(): Part {
  const parts = {
    pay: pay(),
    download: download(),
    contribution: contribution(),
    recovery: recovery(false),
    joining: joining(),
    facts: facts(),
    devices: devices(),
    earnings: earnings(),
    receipts: receipts(),
  };
  const root = h(
    "div",
    { class: "page" },
    h("h2", { class: "heard", tabindex: -1 }, t("nav.home")),
    parts.pay.root,
    parts.download.root,
    parts.contribution.root,
    parts.recovery.root,
    parts.joining.root,
    h(
      "div",
      { class: "columns" },
      h("div", {}, parts.facts.root, parts.devices.root),
      h("div", {}, parts.earnings.root, parts.receipts.root),
    ),
  );
  return {
    root,
    update(view) {
      for (const part of Object.values(parts)) part.update(view);
    },
  };
}
