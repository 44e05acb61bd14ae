// The twelve words: shown when asked for, and asked for again, so that what was written down is known to be right.

import { button, h, onChange, refill, say } from "../dom";
import { engine } from "../engine";
import { number, t } from "../i18n";
import { act, ask, type Part } from "../store";

/// So many words are asked for.
const ASKED = 3;

/// Some of the positions from 1 to `count`, in order.
function some(count: number): number[] {
  const all = Array.from({ length: count }, (_, at) => at + 1);
  const dice = crypto.getRandomValues(new Uint32Array(count));
  all.sort((a, b) => (dice[a - 1] ?? 0) - (dice[b - 1] ?? 0));
  return all.slice(0, ASKED).sort((a, b) => a - b);
}

function wordList(words: string[]): HTMLElement {
  return h("ol", { id: "words", class: "words" }, ...words.map((word) => h("li", {}, word)));
}

export function phrase(): Part {
  const state = h("p", { id: "backed-up" });
  // No live region: nobody wants the words read aloud.
  const stage = h("div", {});
  let owner: string | null = null;
  const rest = (): void => refill(stage, button("show-phrase", t("phrase.show"), reveal));
  const reveal = async (): Promise<void> => {
    const asked = owner;
    const words = await ask(engine.showPhrase);
    if (words === null || asked !== owner) return;
    const next = button("phrase-written", t("phrase.written"), () => question(words.length));
    const hide = button("phrase-hide", t("phrase.hide"), rest, "quiet");
    refill(
      stage,
      h("p", { class: "notice" }, t("phrase.care")),
      wordList(words),
      h("div", { class: "row" }, next, hide),
    );
  };
  const question = (count: number): void => {
    const positions = some(count);
    const boxes = positions.map((at) =>
      h("input", {
        id: `word-${at}`,
        "data-position": at,
        autocomplete: "off",
        autocapitalize: "none",
        spellcheck: "false",
        required: true,
      }),
    );
    const rows = boxes.map((box, at) =>
      h(
        "div",
        { class: "field" },
        h("label", { for: box.id }, t("phrase.word", { number: number(positions[at] ?? 1) })),
        box,
      ),
    );
    const submit = async (event: Event): Promise<void> => {
      event.preventDefault();
      const answers = boxes.map((box, at): [number, string] => [positions[at] ?? 1, box.value.trim().toLowerCase()]);
      if (await act(() => engine.verifyPhrase(answers))) rest();
    };
    const check = h("button", { id: "verify", type: "submit" }, t("phrase.check"));
    const again = button("phrase-again", t("phrase.again"), reveal, "quiet");
    refill(
      stage,
      h(
        "form",
        { id: "verify-phrase", submit },
        h("p", {}, t("phrase.question")),
        ...rows,
        h("div", { class: "row" }, check, again),
      ),
    );
    boxes[0]?.focus();
  };
  rest();
  const root = h(
    "section",
    { id: "phrase", class: "card" },
    h("h3", {}, t("phrase.title")),
    h("p", {}, t("phrase.body")),
    state,
    stage,
  );
  const show = onChange(([address, isSafe, hasPhrase]: [string | null, boolean, boolean]) => {
    root.hidden = address === null;
    // Another wallet, or none: the words of this one are gone.
    if (address !== owner) rest();
    owner = address;
    stage.hidden = !hasPhrase;
    say(state, isSafe ? t("phrase.safe") : hasPhrase ? t("phrase.unsafe") : t("phrase.none"));
    state.className = isSafe ? "good" : "warning";
    state.dataset.safe = String(isSafe);
  });
  return {
    root,
    update({ engine: { wallet } }) {
      show([wallet.kind === "ready" ? wallet.address : null, wallet.backed_up, wallet.has_phrase]);
    },
  };
}
