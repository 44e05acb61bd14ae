// Every sentence, number and date of the window in the user's language. The tray reads the same catalogues.

import en from "./messages/en.json";
import es from "./messages/es.json";
import fr from "./messages/fr.json";
import ja from "./messages/ja.json";
import ko from "./messages/ko.json";

export type Key = keyof typeof en;
export type Args = Record<string, string | number>;

const CATALOGUES: Record<string, Record<Key, string>> = { en, es, fr, ja, ko };
/// Each language by its own name.
export const LANGUAGES: Record<string, string> = {
  en: "English",
  es: "Español",
  fr: "Français",
  ja: "日本語",
  ko: "한국어",
};
const SPANS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
  ["second", 1],
];
const SIZES = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];

let language = "en";

/// Takes a language; whether it is another one than before.
export function speak(wanted: string): boolean {
  const next = wanted in CATALOGUES ? wanted : "en";
  if (next === language) return false;
  language = next;
  return true;
}

export function spoken(): string {
  return language;
}

/// The sentence under `key`, its `{names}` filled in; what nobody gave stays empty.
export function t(key: Key, args: Args = {}): string {
  const sentence = (CATALOGUES[language] ?? en)[key];
  return sentence.replace(/\{(\w+)\}/g, (_, name: string) => String(args[name] ?? ""));
}

/// The sentence under a key that the engine made, if the catalogue has it.
export function told(key: string, args: Args = {}): string | null {
  return key in en ? t(key as Key, args) : null;
}

export function number(value: number | bigint, options: Intl.NumberFormatOptions = {}): string {
  return new Intl.NumberFormat(language, options).format(value);
}

/// Nano-KVR, all digits.
export function nano(text: string): string {
  return number(BigInt(text));
}

/// KVR from nano-KVR, rounded as the engine rounds; money is never a float.
export function kvr(text: string, digits = 5): string {
  const unit = 10n ** BigInt(9 - digits);
  const rounded = (BigInt(text) + unit / 2n) / unit;
  const whole = 10n ** BigInt(digits);
  const part = String(rounded % whole).padStart(digits, "0");
  return number(rounded / whole) + t("number.decimal") + part;
}

export function bytes(value: number): string {
  let size = 0;
  for (; value >= 1000 && size < SIZES.length - 1; size++) value /= 1000;
  const places = value < 10 && size > 0 ? 1 : 0;
  return number(value, { style: "unit", unit: SIZES[size], unitDisplay: "short", maximumFractionDigits: places });
}

export function milliseconds(value: number): string {
  return number(value, { style: "unit", unit: "millisecond", unitDisplay: "short", maximumFractionDigits: 1 });
}

/// A span such as "3 min", in its largest unit.
export function span(seconds: number): string {
  const [unit, length] = SPANS.find(([, length]) => seconds >= length) ?? ["second", 1];
  return number(Math.round(seconds / length), { style: "unit", unit, unitDisplay: "short" });
}

/// How long ago, in the largest whole unit; a clock that runs behind the gateway's gives "just now".
export function ago(ms: number): string {
  const seconds = Math.floor(ms / 1000);
  if (seconds < 5) return t("age.now");
  const [unit, length] = SPANS.find(([, length]) => seconds >= length) ?? ["second", 1];
  return new Intl.RelativeTimeFormat(language, { style: "short" }).format(-Math.floor(seconds / length), unit);
}

export function when(unixSeconds: number): string {
  const format: Intl.DateTimeFormatOptions = { dateStyle: "medium", timeStyle: "short" };
  return new Intl.DateTimeFormat(language, format).format(unixSeconds * 1000);
}

/// Hour and minute; with the day when that is another one.
export function until(unixSeconds: number): string {
  const isToday = new Date(unixSeconds * 1000).toDateString() === new Date().toDateString();
  if (!isToday) return when(unixSeconds);
  return new Intl.DateTimeFormat(language, { timeStyle: "short" }).format(unixSeconds * 1000);
}

/// A day of the gateway's calendar, which is that of UTC.
export function day(iso: string, format: Intl.DateTimeFormatOptions = { month: "short", day: "numeric" }): string {
  return new Intl.DateTimeFormat(language, { ...format, timeZone: "UTC" }).format(new Date(`${iso}T00:00:00Z`));
}

/// Short names of the weekdays, Monday first.
export function weekdays(): string[] {
  return Array.from({ length: 7 }, (_, at) => day(`2024-01-0${at + 1}`, { weekday: "short" }));
}
