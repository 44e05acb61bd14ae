// The doctor's report as it crosses to the page; its sentences are the doctor's own.

export interface Check {
  id: string;
  title: string;
  verdict: "ok" | "warn" | "fail";
  found: string;
  /// Empty when all is well.
  remedy: string;
}

export interface Report {
  checks: Check[];
  /// What lies behind a failed leg and so was not looked at.
  not_reached: string[];
}
