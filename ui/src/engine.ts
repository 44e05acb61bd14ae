// The page's only door to the program: its own commands, each with its types.

import { Channel, invoke } from "@tauri-apps/api/core";
import type { ClaimRoom, PauseKind, Problem, ReceiptLine, Settings, View } from "./ipc";
import type { Report } from "./report";

export const engine = {
  offer: (code: string) => invoke<void>("offer", { code }),
  accept: () => invoke<void>("accept"),
  decline: () => invoke<void>("decline"),
  leave: () => invoke<void>("leave"),
  contribute: (on: boolean) => invoke<void>("contribute", { on }),
  pause: (kind: PauseKind) => invoke<void>("pause", { kind }),
  resume: () => invoke<void>("resume"),
  switchDevice: (id: string, on: boolean) => invoke<void>("switch_device", { id, on }),
  saveSettings: (settings: Settings) => invoke<void>("save_settings", { settings }),
  confirmDownload: (yes: boolean) => invoke<void>("confirm_download", { yes }),
  slicesBytes: () => invoke<number>("slices_bytes"),
  deleteSlices: () => invoke<void>("delete_slices"),
  removeEverything: (confirmedWithoutBackup: boolean) => invoke<void>("remove_everything", { confirmedWithoutBackup }),
  receipts: () => invoke<ReceiptLine[]>("receipts"),

  openWallet: () => invoke<void>("open_wallet"),
  showPhrase: () => invoke<string[]>("show_phrase"),
  verifyPhrase: (answers: [number, string][]) => invoke<void>("verify_phrase", { answers }),
  restoreWallet: (phrase: string) => invoke<void>("restore_wallet", { phrase }),
  newWallet: () => invoke<void>("new_wallet"),
  setPassword: (password: string) => invoke<void>("set_password", { password }),
  unlock: (password: string) => invoke<void>("unlock", { password }),
  claimRoom: () => invoke<ClaimRoom>("claim_room"),
  claim: (nano: string) => invoke<string>("claim", { nano }),

  diagnose: () => invoke<Report>("diagnose"),
  saveReport: () => invoke<string>("save_report"),

  lookForUpdate: () => invoke<void>("look_for_update"),
  installUpdate: () => invoke<void>("install_update"),
  startAtLogin: (on: boolean) => invoke<void>("start_at_login", { on }),
  closeWindow: () => invoke<void>("close_window"),
  stay: () => invoke<void>("stay"),
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
