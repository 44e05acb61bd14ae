// What a status means in words. Codes come from the engine and are stable; the sentences are in the catalogues.

import { ago, bytes, t, told, until, type Args } from "./i18n";
import type { Account, Link, Problem, Slice, Status } from "./ipc";

/// The engine's word for a program that fills the screen, whose name it does not know.
const FULLSCREEN = "fullscreen";
/// And for a download that its owner is asked about.
const WAITS_FOR_A_YES = "confirm";

/// The catalogue's advice, with the engine's own sentence behind it: that one has the values.
export function problemWords(problem: Problem): string {
  const advice = told(`problem.${problem.code}`);
  return advice === null ? problem.message : `${advice} (${problem.message})`;
}

export function statusProblem(status: Status): Problem | null {
  if (status.wallet.kind === "failed") return status.wallet.problem;
  if (status.device.kind === "failed") return status.device.problem;
  return status.network_problem ?? status.worker_problem ?? status.state_problem;
}

export function linkWords(link: Link): string {
  switch (link.kind) {
    case "off":
      return t("link.off");
    case "starting":
      return t("link.starting");
    case "connecting":
      return t("link.connecting", { gateway: link.gateway });
    case "online":
      return t("link.online");
    case "no_hardware":
      return t("link.no_hardware", { reason: link.reason });
    case "waiting":
      return t("link.waiting", { reason: link.reason });
  }
}

export function sliceWords(slice: Slice): string {
  switch (slice.kind) {
    case "nothing":
      return t("slice.nothing");
    case "fetching":
      return t("slice.fetching", { done: bytes(slice.done_bytes), total: bytes(slice.total_bytes) });
    case "held":
      return t("slice.held", { experts: slice.experts });
  }
}

/// Why nothing is earned, or that something is: always one sentence.
export function whyWords(status: Status): string {
  const { code, args } = status.why_not_earning;
  switch (code) {
    case "paused": {
      const end = status.pause?.until_unix_s ?? null;
      if (end !== null) return t("why.paused_until", { time: until(end) });
      return status.pause === null ? t("why.not_started") : t("why.paused");
    }
    case "standing_by": {
      const why = status.standing_by;
      if (why === null) return t("why.standing_by");
      const isScreen = why.reason === "exclusive_app" && why.detail === FULLSCREEN;
      const words = isScreen ? t("standing_by.fullscreen") : t(`standing_by.${why.reason}`, { detail: why.detail });
      return why.until_unix_s === null ? words : t("why.and_until", { words, time: until(why.until_unix_s) });
    }
    case "downloading":
      return args.waits === WAITS_FOR_A_YES ? t("why.confirm_download") : t("why.downloading");
    case "no_device":
      if (args.code !== "lost" || status.device.kind !== "ready") return t("why.no_device");
      return t("why.device_lost", { device: status.device.name });
    default:
      return t(`why.${code}`, args as Args);
  }
}

export function creditWords(account: Account | null, problem: Problem | null, nowMs: number): string {
  const away = t("pay.gateway_away");
  const isAway = problem?.code === "gateway_unreachable";
  if (account === null) return problem === null ? "" : t("pay.not_known", { why: isAway ? away : problemWords(problem) });
  const last = account.last_credit_unix_ms;
  const credit = last === null ? t("pay.no_credit") : t("pay.last_credit", { age: ago(nowMs - last) });
  if (problem === null) return credit;
  const why = isAway ? away : t("pay.gateway_odd");
  return t("pay.stale", { credit, age: ago(nowMs - account.asked_unix_ms), why });
}
