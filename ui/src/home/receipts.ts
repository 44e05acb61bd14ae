// The gateway's receipts that are kept here, asked for when the list is opened.

import { button, h, refill } from "../dom";
import { engine } from "../engine";
import { kvr, nano, number, t, when } from "../i18n";
import type { ReceiptLine } from "../ipc";
import { ask, type Part } from "../store";

/// As many as one looks through; all of them are on the disk.
const SHOWN_MAX = 200;

function row(receipt: ReceiptLine): HTMLElement {
  const worth = receipt.nano;
  const amount =
    worth === null ? h("td", {}, "–") : h("td", { title: `${nano(worth)} nano-KVR`, "data-nano": worth }, kvr(worth));
  return h("tr", {}, h("th", { scope: "row" }, when(receipt.unix_s)), h("td", {}, number(receipt.work_bytes)), amount);
}

function table(receipts: ReceiptLine[]): HTMLElement {
  const names = [t("receipts.time"), t("receipts.work"), "KVR"];
  const head = h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)));
  const body = h("tbody", {}, ...receipts.slice(0, SHOWN_MAX).map(row));
  const scrolls = { class: "scrolls", tabindex: 0, role: "group", "aria-label": t("receipts.title") };
  return h("div", scrolls, h("table", { id: "receipts-table" }, h("thead", {}, head), body));
}

export function receipts(): Part {
  const list = h("div", { "aria-live": "polite" });
  const load = async (): Promise<void> => {
    const found = await ask(engine.receipts);
    if (found === null) return;
    refill(list, found.length === 0 ? h("p", { class: "small" }, t("receipts.none")) : table(found));
  };
  const more = h(
    "details",
    { id: "receipts", toggle: () => void (more.open && load()) },
    h("summary", {}, t("receipts.show")),
    list,
    button("receipts-again", t("receipts.again"), load, "quiet"),
  );
  return {
    root: h("section", { class: "card" }, h("h3", {}, t("receipts.title")), more),
    update() {},
  };
}
