// What stands around each page: the name and the state, the way to the other pages, what is wrong, and Quit.

import { button, h, say, sayOrHide } from "./dom";
import { engine } from "./engine";
import { t, type Key } from "./i18n";
import { act, refused, type Part } from "./store";
import { problemWords, statusProblem } from "./words";

export const ROUTES = ["home", "settings", "wallet", "diagnostics"] as const;
export type Route = (typeof ROUTES)[number];

export function routeOf(hash: string): Route {
  return ROUTES.find((route) => hash === `#${route}`) ?? "home";
}

export function title(route: Route): string {
  return t(`nav.${route}` as Key);
}

function navigation(route: Route): { root: HTMLElement; badge: HTMLElement } {
  const badge = h("span", { id: "badge", class: "badge", hidden: true }, t("nav.badge"));
  const link = (to: Route): HTMLElement => {
    const props = { id: `to-${to}`, href: `#${to}`, "aria-current": to === route ? "page" : null };
    return h("li", {}, h("a", props, title(to), to === "wallet" ? badge : null));
  };
  return { root: h("nav", { "aria-label": t("nav.label") }, h("ul", {}, ...ROUTES.map(link))), badge };
}

/// What there is to say of a newer release, and a button that asks for one.
function newRelease(): Part & { look: HTMLElement } {
  const look = button("look-release", t("release.look"), () => act(engine.lookForUpdate), "quiet");
  const words = h("span", { id: "release-words", role: "status", tabindex: -1 });
  const install = button("install-release", t("release.install"), () => act(engine.installUpdate), "quiet");
  const root = h("p", { id: "release", class: "notice", hidden: true }, words, " ", install);
  return {
    root,
    look,
    update({ new_release: release }) {
      const { kind } = release;
      const before = document.activeElement;
      root.dataset.kind = kind;
      look.hidden = !["not_known", "newest", "unknown", "failed"].includes(kind);
      install.hidden = kind !== "found" && kind !== "failed";
      root.hidden = kind === "none" || kind === "not_known";
      if (kind === "none" || kind === "not_known") return;
      const version = "version" in release ? release.version : "";
      const why = "problem" in release ? problemWords(release.problem) : "";
      say(words, t(`release.${kind}`, { version, why }));
      // Whoever pressed what is gone hears what came of it.
      if ([look, install].some((pressed) => pressed === before && pressed.hidden)) words.focus();
    },
  };
}

/// The page `content` of `route` with everything around it.
export function frame(route: Route, content: Part): Part {
  const state = h("p", { id: "state", role: "status" });
  const problem = h("p", { id: "problem", class: "notice bad", role: "alert", hidden: true });
  const trouble = h("p", { id: "trouble", class: "notice bad", role: "alert", hidden: true });
  const tray = h("p", { id: "tray", class: "notice", hidden: true });
  const version = h("span", { id: "version" });
  const release = newRelease();
  const nav = navigation(route);
  const root = h(
    "div",
    { class: "frame" },
    h("header", {}, h("h1", {}, "Kvasir"), state),
    nav.root,
    h("main", {}, problem, trouble, tray, release.root, content.root),
    h(
      "footer",
      {},
      version,
      release.look,
      button("quit", t("quit"), () => act(engine.quit), "quiet"),
    ),
  );
  return {
    root,
    update(view) {
      const status = view.engine;
      document.body.dataset.state = status.state;
      document.body.dataset.wallet = status.wallet.kind;
      document.body.dataset.why = status.why_not_earning.code;
      say(state, t(`state.${status.state}`));
      const refusal = refused();
      const lasting = statusProblem(status);
      const wrong = refusal ?? view.opened_problem ?? lasting;
      sayOrHide(problem, wrong === null ? "" : problemWords(wrong));
      problem.dataset.code = wrong?.code ?? "";
      // It stays in sight wherever the click was.
      problem.classList.toggle("sticks", refusal !== null);
      const isSaid = lasting === null || lasting.code === wrong?.code;
      sayOrHide(trouble, isSaid ? "" : problemWords(lasting));
      sayOrHide(tray, view.tray === "shown" ? "" : t(`tray.${view.tray}`));
      nav.badge.hidden = status.wallet.kind !== "ready" || status.wallet.backed_up;
      say(version, `Kvasir ${view.version}`);
      release.update(view);
      content.update(view);
    },
  };
}
