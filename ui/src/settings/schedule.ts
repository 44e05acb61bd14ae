// When this computer may work: spans of the day on some weekdays; none of them means always.

import { button, h } from "../dom";
import { t, weekdays } from "../i18n";
import type { Hours } from "../ipc";
import type { Field } from "./fields";

const EVERY_DAY = 0b111_1111;
/// Where hours may end, and none begin.
const DAY_MIN = 24 * 60;
const CLOCK = /^([01]?\d|2[0-3]):([0-5]\d)$|^24:00$/;

/// 90 as 01:30.
function clock(minutes: number): string {
  const pad = (value: number): string => String(value).padStart(2, "0");
  return `${pad(Math.floor(minutes / 60))}:${pad(minutes % 60)}`;
}

function minutes(text: string): number | undefined {
  if (!CLOCK.test(text.trim())) return undefined;
  const [hours, rest] = text.trim().split(":").map(Number);
  return (hours ?? 0) * 60 + (rest ?? 0);
}

function time(id: string, label: string, at: number): HTMLInputElement {
  const props = { id, type: "text", size: 5, maxlength: 5, inputmode: "numeric", "aria-label": label };
  return h("input", { ...props, pattern: CLOCK.source, value: clock(at), required: true });
}

class Row {
  readonly root: HTMLElement;
  private readonly days: HTMLInputElement[];
  private readonly from: HTMLInputElement;
  private readonly to: HTMLInputElement;

  constructor(id: string, hours: Hours, remove: (row: Row) => void) {
    const isOn = (at: number): boolean => (hours.days & (1 << at)) !== 0;
    const names = weekdays();
    this.days = names.map((_, at) => h("input", { id: `${id}-day-${at}`, type: "checkbox", checked: isOn(at) }));
    const labels = this.days.map((box, at) => h("label", { class: "day" }, box, h("span", {}, names[at] ?? "")));
    this.from = time(`${id}-from`, t("schedule.from"), hours.from_min);
    this.to = time(`${id}-to`, t("schedule.to"), hours.to_min);
    const away = button(`${id}-remove`, t("schedule.remove"), () => remove(this), "quiet");
    const days = h("div", { class: "days", role: "group", "aria-label": t("schedule.days") }, ...labels);
    this.root = h("li", {}, days, h("div", { class: "row" }, this.from, "–", this.to, away));
  }

  read(): Hours | undefined {
    const [from_min, to_min] = [minutes(this.from.value), minutes(this.to.value)];
    const days = this.days.reduce((mask, box, at) => mask | (box.checked ? 1 << at : 0), 0);
    const isMeant = from_min !== undefined && from_min < DAY_MIN && to_min !== undefined && days !== 0;
    return isMeant ? { days, from_min, to_min } : undefined;
  }
}

export function schedule(changed: () => void): Field<Hours[]> {
  let rows: Row[] = [];
  let made = 0;
  const list = h("ul", { id: "schedule", class: "plain" });
  const always = h("p", { class: "small" }, t("schedule.always"));
  const show = (): void => {
    list.replaceChildren(...rows.map((row) => row.root));
    always.hidden = rows.length > 0;
  };
  const add = (hours: Hours): void => {
    const remove = (gone: Row): void => {
      rows = rows.filter((row) => row !== gone);
      show();
      more.focus();
      changed();
    };
    rows.push(new Row(`schedule-${made++}`, hours, remove));
  };
  const more = button(
    "schedule-add",
    t("schedule.add"),
    () => {
      add({ days: EVERY_DAY, from_min: 22 * 60, to_min: 8 * 60 });
      show();
      changed();
    },
    "quiet",
  );
  const legend = h("legend", {}, t("schedule.title"));
  return {
    root: h("fieldset", {}, legend, h("p", { class: "small" }, t("schedule.help")), list, always, more),
    fill(value) {
      rows = [];
      value.forEach(add);
      show();
    },
    read() {
      const read = rows.map((row) => row.read());
      return read.includes(undefined) ? undefined : (read as Hours[]);
    },
  };
}
