// A question that the user answers before anything else. The browser keeps the keyboard inside and Escape says no.

import { button, h, type Child } from "./dom";

export interface Question {
  id: string;
  title: string;
  body: Child[];
  yes: string;
  no: string;
  /// Whether yes destroys something.
  isGrave?: boolean;
}

/// Whether the answer was yes.
export function confirmed(question: Question): Promise<boolean> {
  return new Promise((resolve) => {
    const { id } = question;
    const end = (answer: boolean): void => dialog.close(answer ? "yes" : "no");
    const no = button(`${id}-no`, question.no, () => end(false), "quiet");
    const yes = button(`${id}-yes`, question.yes, () => end(true), question.isGrave ? "grave" : "");
    const title = h("h2", { id: `${id}-title` }, question.title);
    const dialog = h(
      "dialog",
      { id, "aria-labelledby": `${id}-title` },
      title,
      ...question.body,
      h("div", { class: "row end" }, no, yes),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    (question.isGrave ? no : yes).focus();
  });
}
