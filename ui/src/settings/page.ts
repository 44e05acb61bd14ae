// Every setting of the engine, taken together when Save is pressed; and what can be deleted here.

import { button, h, onChange, say } from "../dom";
import { engine } from "../engine";
import { LANGUAGES, number, t } from "../i18n";
import type { Settings } from "../ipc";
import { act, lastView, type Part } from "../store";
import { deleting } from "./deleting";
import { choice, lines, optionalBytes, percent, someBytes, toggle, type Field } from "./fields";
import { schedule } from "./schedule";

type Fields = { [K in keyof Settings]: Field<Settings[K]> };

function fields(changed: () => void): Fields {
  const asPercent = (value: number): string => number(value / 100, { style: "percent" });
  const languages = Object.entries(LANGUAGES) as [Settings["language"], string][];
  return {
    duty_percent: percent("duty", t("set.duty"), t("set.duty.help"), asPercent),
    vram_cap_bytes: optionalBytes("vram-cap", t("set.vram"), t("set.vram.help")),
    disk_cap_bytes: someBytes("disk-cap", t("set.disk"), t("set.disk.help")),
    schedule: schedule(changed),
    only_when_idle: toggle("only-when-idle", t("set.idle")),
    on_battery: toggle("on-battery", t("set.battery")),
    on_metered: toggle("on-metered", t("set.metered")),
    pause_for_fullscreen: toggle("pause-for-fullscreen", t("set.fullscreen")),
    pause_for_apps: lines("pause-for-apps", t("set.apps"), t("set.apps.help")),
    gateways: lines("gateways", t("set.gateways"), t("set.gateways.help")),
    notifications: toggle("notifications", t("set.notifications")),
    language: choice("language", t("set.language"), [["auto", t("set.language.auto")], ...languages]),
  };
}

/// What the form says, on top of what there is; `null` where a field cannot be meant.
function read(form: Fields, before: Settings): Settings | null {
  const wish = Object.entries(form).map(([name, field]) => [name, (field as Field<unknown>).read()] as const);
  if (wish.some(([, value]) => value === undefined)) return null;
  return { ...before, ...Object.fromEntries(wish) };
}

function fill(form: Fields, settings: Settings): void {
  for (const [name, field] of Object.entries(form)) (field as Field<unknown>).fill(settings[name as keyof Settings]);
}

export function settingsPage(): Part {
  let isTouched = false;
  const said = h("p", { id: "saved", role: "status", class: "small" });
  const touch = (): void => {
    isTouched = true;
    save.disabled = undo.disabled = false;
    say(said, "");
  };
  const settle = (words: string): void => {
    isTouched = false;
    save.disabled = undo.disabled = true;
    say(said, words);
  };
  const form = fields(touch);
  const unseen = h("p", { id: "fullscreen-unseen", class: "small" }, t("set.fullscreen.unseen"));
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const before = lastView()?.engine.settings;
    const wish = before === undefined ? null : read(form, before);
    if (wish === null) return say(said, t("set.invalid"));
    if (await act(() => engine.saveSettings(wish))) settle(t("set.saved"));
  };
  const back = (): void => {
    const settings = lastView()?.engine.settings;
    if (settings !== undefined) fill(form, settings);
    settle("");
  };
  const save = h("button", { id: "save", type: "submit", disabled: true }, t("set.save"));
  const undo = button("undo", t("set.undo"), back, "quiet");
  undo.disabled = true;
  const group = (title: string, ...parts: { root: HTMLElement }[]): HTMLElement =>
    h("section", { class: "card" }, h("h3", {}, title), ...parts.map((part) => part.root));
  const login = toggle("start-at-login", t("set.login"));
  login.root.addEventListener("change", () => void act(() => engine.startAtLogin(login.read() === true)));
  const root = h(
    "div",
    { class: "page" },
    h("h2", { tabindex: -1 }, t("nav.settings")),
    h(
      "form",
      { id: "settings", submit, input: touch },
      group(t("set.power"), form.duty_percent, form.vram_cap_bytes, form.disk_cap_bytes),
      group(t("set.when"), form.schedule, form.only_when_idle, form.on_battery, form.on_metered),
      group(t("set.courtesy"), form.pause_for_fullscreen, { root: unseen }, form.pause_for_apps),
      group(t("set.network"), form.gateways),
      group(t("set.window"), form.notifications, form.language),
      h("div", { class: "row bar-below" }, save, undo, said),
    ),
    h("section", { class: "card" }, h("h3", {}, t("set.start")), login.root),
    deleting(),
  );
  const follow = onChange((settings: Settings) => {
    // What is being typed stays; the rest follows the engine.
    if (!isTouched) fill(form, settings);
  });
  return {
    root,
    update(view) {
      follow(view.engine.settings);
      unseen.hidden = view.sees_fullscreen;
      login.root.hidden = view.starts_at_login === null;
      login.fill(view.starts_at_login === true);
    },
  };
}
