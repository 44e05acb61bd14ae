// Shows the engine's status and turns clicks into commands. The page keeps nothing but the last view.

import { asProblem, engine } from "./engine";
import type { Problem, Status, View } from "./ipc";
import { creditWords, deviceWords, linkWords, missingWords, problemWords, sliceWords, stateWords, trayWords } from "./words";

function part<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`no element ${id}`);
  return found as T;
}

/// Longest file that can be a join code.
const CODE_FILE_BYTES_MAX = 16 * 1024;

let last: View | null = null;
/// Why the last click was refused; shown until the next one.
let refused: Problem | null = null;

function text(id: string, words: string): void {
  const element = part(id);
  if (element.textContent !== words) element.textContent = words;
}

function shown(id: string, words: string): void {
  text(id, words);
  part(id).hidden = words === "";
}

function statusProblem(status: Status): Problem | null {
  if (status.wallet.kind === "failed") return status.wallet.problem;
  if (status.device.kind === "failed") return status.device.problem;
  return status.network_problem ?? status.worker_problem;
}

function render(view: View): void {
  const { engine: status, tray, version } = view;
  document.body.dataset.state = status.state;
  text("state", stateWords(status.state));
  const problem = refused ?? view.opened_problem ?? statusProblem(status);
  shown("problem", problem === null ? "" : problemWords(problem));
  part("problem").dataset.code = problem?.code ?? "";
  shown("tray", trayWords(tray));

  const account = status.account;
  text("pending", account?.pending_kvr ?? "–");
  part("pending").title = account === null ? "not known yet" : `${account.pending_nano_kvr} nano-KVR`;
  part("pending").dataset.nano = account?.pending_nano_kvr ?? "";

  const missing = missingWords(status);
  text("contribute", status.contributing ? "Pause" : "Contribute");
  part<HTMLButtonElement>("contribute").disabled = !status.contributing && missing !== "";
  text("missing", status.contributing ? "" : missing);

  const wallet = status.wallet;
  part("recovery").hidden = wallet.kind !== "key_missing";
  part("again").hidden = wallet.kind !== "key_missing" && wallet.kind !== "failed";
  text("lost", wallet.kind === "key_missing" ? wallet.address : "");
  document.body.dataset.wallet = wallet.kind;
  text("wallet", wallet.kind === "ready" ? wallet.address : wallet.kind === "opening" ? "opening" : "not usable");
  part("copy").hidden = wallet.kind !== "ready";

  part("join").hidden = status.network !== null || status.offer !== null;
  part("offer").hidden = status.offer === null;
  text("offer-operator", status.offer?.operator ?? "");
  text("offer-gateways", status.offer?.gateways.join(", ") ?? "");
  text("network", status.network?.gateways.join(", ") ?? "none");
  part("network").title = status.network === null ? "" : `operator ${status.network.operator}`;
  part("leave").hidden = status.network === null;

  text("link", linkWords(status.link));
  part("link").dataset.kind = status.link.kind;
  text("slice", sliceWords(status.slice));
  const progress = part<HTMLProgressElement>("progress");
  progress.hidden = status.slice.kind !== "fetching";
  if (status.slice.kind === "fetching") {
    progress.max = status.slice.total_bytes;
    progress.value = status.slice.done_bytes;
  }
  text("served", `${status.assignments} assignments since Contribute was pressed`);
  text("device", deviceWords(status.device));
  const why = status.device.kind === "ready" ? status.device.why : "";
  shown("why", why === "" ? "" : `because ${why}`);
  part("why").title = why;
  text("version", `Kvasir ${version}`);
  age();
}

/// The ages go on while nothing else changes.
function age(): void {
  if (last !== null) text("credit", creditWords(last.engine.account, last.engine.account_problem, Date.now()));
}

async function act(command: () => Promise<void>): Promise<boolean> {
  refused = null;
  try {
    await command();
  } catch (error) {
    refused = asProblem(error);
  }
  if (last !== null) render(last);
  return refused === null;
}

function on(id: string, event: string, does: () => unknown): void {
  part(id).addEventListener(event, (happened) => {
    happened.preventDefault();
    void does();
  });
}

async function look(code: string): Promise<void> {
  if (await act(() => engine.offer(code))) part<HTMLTextAreaElement>("code").value = "";
}

on("contribute", "click", () => act(() => engine.contribute(last?.engine.contributing !== true)));
on("join", "submit", () => look(part<HTMLTextAreaElement>("code").value));
on("file", "change", async () => {
  const file = part<HTMLInputElement>("file").files?.[0];
  if (file !== undefined) await look(await file.slice(0, CODE_FILE_BYTES_MAX + 1).text());
});
on("accept", "click", () => act(engine.accept));
on("decline", "click", () => act(engine.decline));
on("leave", "click", () => act(engine.leave));
on("retry", "click", () => act(engine.openWallet));
on("quit", "click", () => act(engine.quit));
on("copy", "click", () => {
  // The old way: it needs no permission, only the click.
  const range = document.createRange();
  range.selectNodeContents(part("wallet"));
  const selection = window.getSelection();
  selection?.removeAllRanges();
  selection?.addRange(range);
  text("copy", document.execCommand("copy") ? "Copied" : "Press Ctrl+C");
  setTimeout(() => text("copy", "Copy"), 2000);
});

setInterval(age, 1000);
void engine.watch((view) => {
  last = view;
  render(view);
});
