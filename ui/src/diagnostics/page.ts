// The doctor in the window: what it examined, what it found, and what to do; and its report as a file without secrets.

import { button, h, refill, say, sayOrHide } from "../dom";
import { engine } from "../engine";
import { t } from "../i18n";
import type { Check, Report } from "../report";
import { ask, type Part } from "../store";

function row(check: Check): HTMLElement {
  const verdict = h("span", { class: "verdict" }, t(`verdict.${check.verdict}`));
  const remedy = check.remedy !== "" ? h("p", { class: "remedy" }, check.remedy) : null;
  return h(
    "li",
    { id: `check-${check.id}`, "data-verdict": check.verdict },
    verdict,
    h("div", {}, h("h3", {}, check.title), h("p", { class: "small" }, check.found), remedy),
  );
}

function summary(report: Report): string {
  const count = (verdict: Check["verdict"]): number =>
    report.checks.filter((check) => check.verdict === verdict).length;
  return t("doctor.summary", { ok: count("ok"), warn: count("warn"), fail: count("fail") });
}

export function diagnosticsPage(): Part {
  const said = h("p", { id: "doctor-said", role: "status" });
  const beyond = h("p", { id: "not-reached", class: "small", hidden: true });
  const list = h("ul", { id: "checks", class: "plain checks" });
  const run = async (): Promise<void> => {
    examine.disabled = true;
    say(said, t("doctor.running"));
    const report = await ask(engine.diagnose);
    examine.disabled = false;
    say(said, report === null ? "" : summary(report));
    refill(list, ...(report?.checks ?? []).map(row));
    const missed = report?.not_reached ?? [];
    sayOrHide(beyond, missed.length === 0 ? "" : t("doctor.not_reached", { what: missed.join(", ") }));
    save.hidden = report === null;
  };
  const keep = async (): Promise<void> => {
    const path = await ask(engine.saveReport);
    if (path !== null) say(said, t("doctor.saved", { path }));
  };
  const examine = button("examine", t("doctor.run"), run);
  const save = button("save-report", t("doctor.save"), keep, "quiet");
  save.hidden = true;
  const root = h(
    "div",
    { class: "page" },
    h("h2", { tabindex: -1 }, t("nav.diagnostics")),
    h("p", {}, t("doctor.body")),
    h("div", { class: "row" }, examine, save),
    said,
    list,
    beyond,
  );
  return { root, update() {} };
}
