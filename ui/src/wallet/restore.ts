// Bringing a wallet back from its twelve words, or beginning with a new one.

import { confirmed } from "../dialog";
import { button, h, onChange, say } from "../dom";
import { engine } from "../engine";
import { t } from "../i18n";
import { act, lastView, type Part } from "../store";

/// What this computer may lose by taking another wallet.
function risk(): string {
  return lastView()?.engine.wallet.backed_up === true ? t("replace.body") : t("replace.unsaved");
}

async function replace(id: string, title: string, yes: string): Promise<boolean> {
  return confirmed({ id, title, body: [h("p", {}, risk())], yes, no: t("cancel"), isGrave: true });
}

export function restore(): Part {
  const words = h("textarea", {
    id: "restore-phrase",
    rows: 3,
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "none",
    required: true,
    "aria-describedby": "restore-help",
  });
  const said = h("p", { id: "restored", role: "status", class: "small" });
  const hasWallet = (): boolean => lastView()?.engine.wallet.kind === "ready";
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const phrase = words.value.trim().toLowerCase().replace(/\s+/g, " ");
    if (hasWallet() && !(await replace("replace", t("replace.title"), t("replace.yes")))) return;
    if (!(await act(() => engine.restoreWallet(phrase)))) return;
    words.value = "";
    say(said, t("restore.done"));
  };
  const fresh = async (): Promise<void> => {
    if (await replace("fresh", t("fresh.title"), t("fresh.yes"))) await act(engine.newWallet);
  };
  const details = h(
    "details",
    { id: "restore", class: "card" },
    h("summary", {}, t("restore.title")),
    h(
      "form",
      { id: "restore-form", submit },
      h("p", { id: "restore-help", class: "small" }, t("restore.help")),
      h("label", { for: "restore-phrase" }, t("restore.phrase")),
      words,
      h("div", { class: "row" }, h("button", { id: "restore-now", type: "submit" }, t("restore.yes")), said),
    ),
    h("p", { class: "small" }, t("fresh.help")),
    button("new-wallet", t("fresh"), fresh, "quiet grave"),
  );
  // Open where it is what the user came for.
  const show = onChange((needs: string | null) => {
    if (needs === "restore") details.open = true;
  });
  return {
    root: details,
    update({ engine: { wallet } }) {
      show(wallet.needs);
    },
  };
}
