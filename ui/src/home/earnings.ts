// Earnings of the last days as bars, and the same as a table for those who cannot see bars.

import { drawn, h, onChange, refill } from "../dom";
import { day, kvr, nano, t } from "../i18n";
import type { Part } from "../store";

interface Day {
  day: string;
  nano: string;
}

const DAYS_MAX = 30;
const DAY_MS = 86_400_000;
const [WIDTH, HEIGHT, BASE] = [300, 90, 76];

/// Today in the gateway's calendar.
function today(): string {
  return new Date().toISOString().slice(0, 10);
}

/// The days from the first one known to `now`, those without credit included; none when nothing is known.
export function filled(known: Day[], now: string): Day[] {
  const sorted = [...known].sort((a, b) => a.day.localeCompare(b.day));
  const newest = sorted[sorted.length - 1]?.day;
  if (newest === undefined) return [];
  // A clock that is slow hides no credit.
  const last = newest > now ? newest : now;
  const amounts = new Map(sorted.map((one) => [one.day, one.nano]));
  const all: Day[] = [];
  for (let at = DAYS_MAX - 1; at >= 0; at--) {
    const iso = new Date(Date.parse(last) - at * DAY_MS).toISOString().slice(0, 10);
    all.push({ day: iso, nano: amounts.get(iso) ?? "0" });
  }
  const first = all.findIndex((one) => amounts.has(one.day));
  return all.slice(first < 0 ? DAYS_MAX - 7 : Math.min(first, DAYS_MAX - 7));
}

function chart(days: Day[]): SVGElement {
  const most = days.reduce((max, one) => (BigInt(one.nano) > max ? BigInt(one.nano) : max), 1n);
  const step = WIDTH / days.length;
  const bars = days.map((one, at) => {
    // A thousand steps are finer than the picture.
    const height = (Number((BigInt(one.nano) * 1000n) / most) / 1000) * (BASE - 6);
    const tip = drawn("title", {}, `${day(one.day)}: ${kvr(one.nano)} KVR`);
    const box = { x: at * step + step * 0.15, width: step * 0.7, y: BASE - height, height, class: "bar" };
    return drawn("rect", box, tip);
  });
  const ends = [days[0], days[days.length - 1]].map((one, at) =>
    drawn("text", { x: at * WIDTH, y: HEIGHT - 2, "text-anchor": at === 0 ? "start" : "end" }, one ? day(one.day) : ""),
  );
  const best = kvr(String(most === 1n ? 0 : most));
  const label = t("earnings.label", { days: days.length, best });
  const axis = drawn("line", { x1: 0, x2: WIDTH, y1: BASE, y2: BASE, class: "axis" });
  return drawn(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, id: "chart" },
    ...bars,
    axis,
    ...ends,
  );
}

function table(days: Day[]): HTMLElement {
  const rows = [...days]
    .reverse()
    .map((one) =>
      h("tr", {}, h("th", { scope: "row" }, day(one.day)), h("td", { title: nano(one.nano) }, kvr(one.nano))),
    );
  const head = h("tr", {}, h("th", { scope: "col" }, t("earnings.day")), h("th", { scope: "col" }, "KVR"));
  return h(
    "div",
    { class: "scrolls", tabindex: 0, role: "group", "aria-label": t("earnings.table") },
    h("table", { id: "earnings-table" }, h("thead", {}, head), h("tbody", {}, ...rows)),
  );
}

export function earnings(): Part {
  const picture = h("div", {});
  const rows = h("div", {});
  const more = h("details", { id: "earnings-more" }, h("summary", {}, t("earnings.table")), rows);
  const show = onChange(([known, now]: [Day[], string]) => {
    const days = filled(known, now);
    more.hidden = days.length === 0;
    refill(picture, days.length === 0 ? h("p", { class: "small" }, t("earnings.none")) : chart(days));
    refill(rows, days.length === 0 ? null : table(days));
  });
  return {
    root: h("section", { id: "earnings", class: "card" }, h("h3", {}, t("earnings.title")), picture, more),
    update({ engine: { account } }) {
      show([account?.per_day ?? [], today()]);
    },
  };
}
