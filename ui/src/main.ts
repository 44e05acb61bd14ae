// Shows the engine's view on the page that the address names.

import { diagnosticsPage } from "./diagnostics/page";
import { engine } from "./engine";
import { frame, routeOf, title, type Route } from "./frame";
import { homePage } from "./home/page";
import { speak, spoken } from "./i18n";
import { askBeforeTheFirstClose } from "./leaving";
import { settingsPage } from "./settings/page";
import { forgetRefusal, lastView, listen, refresh, show, type Part } from "./store";
import { walletPage } from "./wallet/page";

/// The ages go on while nothing else changes.
const AGE_EVERY_MS = 1000;
const PAGES: Record<Route, () => Part> = {
  home: homePage,
  settings: settingsPage,
  wallet: walletPage,
  diagnostics: diagnosticsPage,
};

let current: Part | null = null;

/// Makes the page anew: another one, or the same in another language.
function open(): void {
  const route = routeOf(location.hash);
  document.documentElement.lang = spoken();
  document.title = `Kvasir – ${title(route)}`;
  current = frame(route, PAGES[route]());
  document.getElementById("app")?.replaceChildren(current.root);
  const view = lastView();
  if (view !== null) current.update(view);
}

listen((view) => {
  if (speak(view.language) || current === null) open();
  else current.update(view);
  askBeforeTheFirstClose(view);
});
window.addEventListener("hashchange", () => {
  forgetRefusal();
  open();
  // Whoever went here by keyboard goes on at the page's beginning.
  document.querySelector<HTMLElement>("main h2")?.focus();
});
setInterval(refresh, AGE_EVERY_MS);
void engine.watch(show);
