// Makes elements: no framework, no inline style, no markup from strings.

export type Child = Node | string | null;
type Value = string | number | boolean | null | ((event: Event) => unknown);
export type Props = Record<string, Value>;

/// Fields that are properties of an element; its attributes of the same name are only defaults.
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open"]);
const SVG = "http://www.w3.org/2000/svg";

function dress(element: Element, props: Props, children: Child[]): void {
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (PROPERTIES.has(name)) Reflect.set(element, name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null));
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  dress(element, props, children);
  return element;
}

export function drawn(tag: string, props: Props, ...children: Child[]): SVGElement {
  const element = document.createElementNS(SVG, tag);
  dress(element, props, children);
  return element;
}

/// A button; what it does may be awaited by nobody.
export function button(id: string, words: string, does: () => unknown, look = ""): HTMLButtonElement {
  return h("button", { id, type: "button", class: look || null, click: () => void does() }, words);
}

/// Changes a text only when it is another one, so that a screen reader speaks once.
export function say(element: HTMLElement, words: string): void {
  if (element.textContent !== words) element.textContent = words;
}

/// The same, and an element without words is not there.
export function sayOrHide(element: HTMLElement, words: string): void {
  say(element, words);
  element.hidden = words === "";
}

/// New children; whoever had the keyboard keeps it under the same id, or else at the first of them that takes it.
export function refill(parent: HTMLElement, ...children: Child[]): void {
  const before = document.activeElement;
  const hadIt = before !== null && parent.contains(before);
  parent.replaceChildren(...children.filter((child) => child !== null));
  if (!hadIt) return;
  const same = before.id === "" ? null : document.getElementById(before.id);
  (same ?? parent.querySelector<HTMLElement>("button, input, a, [tabindex]"))?.focus();
}

/// Calls `render` whenever what it gets is another value than before.
export function onChange<T>(render: (value: T) => void): (value: T) => void {
  let before: string | undefined;
  return (value) => {
    const now = JSON.stringify(value) ?? "";
    if (now === before) return;
    before = now;
    render(value);
  };
}
