// A password file in place of the keyring, where there is none: made here, opened with its password, and given another.

import { h, onChange, say } from "../dom";
import { engine } from "../engine";
import { t } from "../i18n";
import { act, type Part } from "../store";

/// Shorter ones are guessed.
const LENGTH_MIN = 10;

function field(id: string, label: string, autocomplete: string): { root: HTMLElement; box: HTMLInputElement } {
  const box = h("input", { id, type: "password", autocomplete, required: true });
  return { root: h("div", { class: "field" }, h("label", { for: id }, label), box), box };
}

export function unlock(): Part {
  const { root, box } = field("password", t("password.password"), "current-password");
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const password = box.value;
    box.value = "";
    await act(() => engine.unlock(password));
  };
  const form = h(
    "form",
    { id: "unlock", class: "card", submit },
    h("h3", {}, t("unlock.title")),
    root,
    h("button", { id: "unlock-now", type: "submit" }, t("unlock.yes")),
  );
  return {
    root: form,
    update({ engine: { wallet } }) {
      form.hidden = wallet.needs !== "password" || wallet.stored !== "password_file";
    },
  };
}

export function password(): Part {
  const first = field("new-password", t("password.new"), "new-password");
  const second = field("repeat-password", t("password.repeat"), "new-password");
  first.box.minLength = LENGTH_MIN;
  const said = h("p", { id: "password-said", role: "status", class: "small" });
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (first.box.value !== second.box.value) return say(said, t("password.differ"));
    const password = first.box.value;
    first.box.value = second.box.value = "";
    say(said, (await act(() => engine.setPassword(password))) ? t("password.done") : "");
  };
  const help = h("p", { class: "small" }, t("password.help"));
  const set = h("button", { id: "set-password", type: "submit" });
  const row = h("div", { class: "row" }, set, said);
  const form = h("form", { id: "password-file", submit }, help, first.root, second.root, row);
  const summary = h("summary", {});
  const details = h("details", { id: "password-more", class: "card" }, summary, form);
  const show = onChange(([isNeeded, canChange]: [boolean, boolean]) => {
    // The keyring keeps what it has.
    details.hidden = !isNeeded && !canChange;
    details.open = isNeeded;
    help.hidden = canChange;
    say(summary, canChange ? t("password.change") : t("password.title"));
    say(set, canChange ? t("password.change") : t("password.yes"));
  });
  return {
    root: details,
    update({ engine: { wallet } }) {
      const hasFile = wallet.stored === "password_file";
      show([!hasFile && wallet.needs === "password", hasFile && wallet.kind === "ready"]);
    },
  };
}
