// The kinds of fields that settings have; each can be read back and filled in.

import { h } from "../dom";

export interface Field<T> {
  root: HTMLElement;
  fill(value: T): void;
  /// What stands there; `undefined` where that is nothing that can be meant.
  read(): T | undefined;
}

const GIGABYTE = 1e9;

export function toggle(id: string, label: string): Field<boolean> {
  const box = h("input", { id, type: "checkbox", role: "switch" });
  return {
    root: h("p", {}, h("label", {}, box, h("span", {}, label))),
    fill: (value) => void (box.checked = value),
    read: () => box.checked,
  };
}

/// A text a line; empty lines count for nothing.
export function lines(id: string, label: string, help: string): Field<string[]> {
  const text = h("textarea", { id, rows: 2, spellcheck: "false", "aria-describedby": `${id}-help` });
  const note = h("p", { id: `${id}-help`, class: "small" }, help);
  return {
    root: h("div", { class: "field" }, h("label", { for: id }, label), text, note),
    fill: (value) => void (text.value = value.join("\n")),
    read: () =>
      text.value
        .split("\n")
        .map((line) => line.trim())
        .filter((line) => line !== ""),
  };
}

/// Bytes as gigabytes; empty is `null`, which only some mean.
function gigabytes(id: string, label: string, help: string, isOptional: boolean): Field<number | null> {
  const props = { id, type: "number", min: 0.1, step: "any", required: !isOptional, "aria-describedby": `${id}-help` };
  const box = h("input", { ...props, inputmode: "decimal" });
  const note = h("p", { id: `${id}-help`, class: "small" }, help);
  // What nobody changed is not rounded by being shown.
  let filled = { text: "", value: null as number | null };
  return {
    root: h("div", { class: "field" }, h("label", { for: id }, label), box, note),
    fill(value) {
      box.value = value === null ? "" : String(Math.round(value / 1e6) / 1e3);
      filled = { text: box.value, value };
    },
    read() {
      if (!box.checkValidity()) return undefined;
      if (box.value === filled.text) return filled.value;
      return box.value === "" ? null : Math.round(box.valueAsNumber * GIGABYTE);
    },
  };
}

export function optionalBytes(id: string, label: string, help: string): Field<number | null> {
  return gigabytes(id, label, help, true);
}

export function someBytes(id: string, label: string, help: string): Field<number> {
  const { root, fill, read } = gigabytes(id, label, help, false);
  return { root, fill, read: () => read() ?? undefined };
}

export function percent(id: string, label: string, help: string, show: (value: number) => string): Field<number> {
  const shown = h("output", { for: id });
  const tell = (): void => void (shown.textContent = show(bar.valueAsNumber));
  const props = { id, type: "range", min: 0, max: 100, step: 5, "aria-describedby": `${id}-help`, input: tell };
  const bar = h("input", props);
  const note = h("p", { id: `${id}-help`, class: "small" }, help);
  return {
    root: h("div", { class: "field" }, h("label", { for: id }, label, " ", shown), bar, note),
    fill(value) {
      bar.value = String(value);
      tell();
    },
    read: () => bar.valueAsNumber,
  };
}

export function choice<T extends string>(id: string, label: string, options: [T, string][]): Field<T> {
  const list = h("select", { id }, ...options.map(([value, words]) => h("option", { value }, words)));
  return {
    root: h("div", { class: "field" }, h("label", { for: id }, label), list),
    fill: (value) => void (list.value = value),
    read: () => options.find(([value]) => value === list.value)?.[0],
  };
}
