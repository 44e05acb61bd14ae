// What a status means in words. Codes come from the engine and are stable; texts live here.

import type { Account, DeviceState, Link, Problem, Slice, State, Status, Tray } from "./ipc";

const STATES: Record<State, string> = {
  idle: "Ready, nothing to compute yet",
  working: "Working",
  paused: "Paused",
  error: "Needs you",
  offline: "Offline",
};

// Codes that deserve more than the engine's own sentence.
const ADVICE: Record<string, string> = {
  keyring_unavailable: "The system keyring does not answer. Start or unlock it (on Linux: gnome-keyring or KWallet).",
  invite_expired: "This join code is too old. Ask the operator for a new one.",
  invite_unsigned: "This join code was changed on its way, or is not the operator's. Ask for a new one.",
  invite_malformed: "This is not a whole join code. It starts with kvasir://join# and is one line.",
  offer_waiting: "An invitation waits already. Join or decline it first.",
  invite_other_operator: "This code is of another operator. Leave the present network first.",
  gateway_unreachable: "The gateway does not answer; the amount may be old.",
};

export function stateWords(state: State): string {
  return STATES[state];
}

export function problemWords(problem: Problem): string {
  const advice = ADVICE[problem.code];
  return advice ? `${advice} (${problem.message})` : problem.message;
}

export function linkWords(link: Link): string {
  switch (link.kind) {
    case "off":
      return "not connected: contributing is paused";
    case "starting":
      return "measuring this device";
    case "connecting":
      return `connecting to ${link.gateway}`;
    case "online":
      return "online";
    case "no_hardware":
      return `not computing: ${link.reason}; looking for it`;
    case "waiting":
      return `offline: ${link.reason}; trying again`;
  }
}

export function deviceWords(device: DeviceState): string {
  switch (device.kind) {
    case "opening":
      return "looking";
    case "failed":
      return "none";
    case "ready":
      return device.name;
  }
}

export function sliceWords(slice: Slice): string {
  switch (slice.kind) {
    case "nothing":
      return "none";
    case "fetching":
      return `fetching ${megabytes(slice.done_bytes)} of ${megabytes(slice.total_bytes)} MB`;
    case "held":
      return `experts ${slice.experts}`;
  }
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(1);
}

/// What stands between the user and contributing, in the order in which it can be mended.
export function missingWords(status: Status): string {
  if (status.wallet.kind === "opening") return "Waiting for the system keyring";
  if (status.wallet.kind !== "ready") return "The wallet cannot be used, see above";
  if (status.network === null) return "First join a network: paste a join code below";
  if (status.device.kind === "opening") return "Looking for a device";
  if (status.device.kind === "failed") return "Nothing here can compute, see above";
  return "";
}

export function creditWords(account: Account | null, problem: Problem | null, nowMs: number): string {
  if (account === null) return problem === null ? "" : problemWords(problem);
  const credit =
    account.last_credit_unix_ms === null ? "no credit yet" : `last credit ${ago(nowMs - account.last_credit_unix_ms)}`;
  if (problem === null) return credit;
  const why = problem.code === "gateway_unreachable" ? "gateway does not answer" : "gateway's answer is of no use";
  return `${credit}; as of ${ago(nowMs - account.asked_unix_ms)}: ${why}`;
}

/// A span in its largest whole unit; a clock that runs behind the gateway's gives "just now".
export function ago(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} days ago`;
}

export function trayWords(tray: Tray): string {
  switch (tray) {
    case "shown":
      return "";
    case "no_host":
      return "This desktop shows no tray icons, so this window stays open. Quit ends Kvasir.";
    case "no_library":
      return "The tray needs libayatana-appindicator3, which is not installed, so this window stays open. Quit ends Kvasir.";
  }
}
