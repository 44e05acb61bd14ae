// The page's only door to the program: its own commands, each with its types.

import { Channel, invoke } from "@tauri-apps/api/core";
import type { Problem, View } from "./ipc";

export const engine = {
  offer: (code: string) => invoke<void>("offer", { code }),
  accept: () => invoke<void>("accept"),
  decline: () => invoke<void>("decline"),
  leave: () => invoke<void>("leave"),
  contribute: (on: boolean) => invoke<void>("contribute", { on }),
  openWallet: () => invoke<void>("open_wallet"),
  quit: () => invoke<void>("quit"),
  /// Calls `show` with the present view and with each later one.
  watch(show: (view: View) => void): Promise<void> {
    const views = new Channel<View>();
    views.onmessage = show;
    return invoke<void>("watch", { views });
  },
};

/// What a command was refused with; anything else is a fault of the page.
export function asProblem(error: unknown): Problem {
  if (typeof error === "object" && error !== null && "code" in error && "message" in error) return error as Problem;
  return { code: "page", message: String(error) };
}
