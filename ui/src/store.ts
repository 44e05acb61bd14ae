// What the page knows: the last view, and why the last click was refused. Nothing else is kept.

import { asProblem } from "./engine";
import type { Problem, View } from "./ipc";

/// A piece of the page: made once, told of each view.
export interface Part {
  root: HTMLElement;
  update(view: View): void;
}

let last: View | null = null;
let refusal: Problem | null = null;
let listener: (view: View) => void = () => {};

export function lastView(): View | null {
  return last;
}

/// Why the last click was refused, until the next one or another page.
export function refused(): Problem | null {
  return refusal;
}

/// Another page is shown: what was refused on the one before is over.
export function forgetRefusal(): void {
  refusal = null;
}

/// Who is told of views; the page has one root.
export function listen(to: (view: View) => void): void {
  listener = to;
}

export function show(view: View): void {
  last = view;
  listener(view);
}

export function refresh(): void {
  if (last !== null) listener(last);
}

/// Does what a click asked for; `null` when it was refused, which the page then says.
export async function ask<T>(command: () => Promise<T>): Promise<T | null> {
  refusal = null;
  try {
    return await command();
  } catch (error) {
    refusal = asProblem(error);
    return null;
  } finally {
    refresh();
  }
}

/// The same for commands that answer nothing: whether it was done.
export async function act(command: () => Promise<void>): Promise<boolean> {
  const done = await ask(async () => {
    await command();
    return true;
  });
  return done !== null;
}
