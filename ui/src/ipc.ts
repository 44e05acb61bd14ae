// Written from src-tauri/src/engine/status.rs by its test; KVASIR_WRITE_TYPES=1 writes it anew.

export type State = "idle" | "working" | "paused" | "error" | "offline";

export type Problem = { 
/**
 * Such as `invite_expired`.
 */
code: string, 
/**
 * What was expected, what there was, and what to do.
 */
message: string, };

export type WalletState = { "kind": "opening" } | { "kind": "ready", 
/**
 * base58.
 */
address: string, } | { "kind": "key_missing", 
/**
 * base58.
 */
address: string, 
/**
 * Where the key should be, and what to do.
 */
problem: Problem, } | { "kind": "failed", 
/**
 * Why.
 */
problem: Problem, };

export type DeviceState = { "kind": "opening" } | { "kind": "ready", 
/**
 * The hardware and its path.
 */
name: string, 
/**
 * Completes "because …"; empty when there was nothing to choose.
 */
why: string, } | { "kind": "failed", 
/**
 * Why.
 */
problem: Problem, };

export type Network = { 
/**
 * The operator's public key.
 */
operator: string, 
/**
 * Where its gateways are.
 */
gateways: Array<string>, 
/**
 * Until when its code may be taken, milliseconds since 1970.
 */
expires_unix_ms: number, };

export type Link = { "kind": "off" } | { "kind": "starting" } | { "kind": "connecting", 
/**
 * Whom.
 */
gateway: string, } | { "kind": "online" } | { "kind": "no_hardware", 
/**
 * What the driver said.
 */
reason: string, } | { "kind": "waiting", 
/**
 * Why the last one ended.
 */
reason: string, 
/**
 * The whole pause.
 */
retry_ms: number, };

export type Slice = { "kind": "nothing" } | { "kind": "fetching", 
/**
 * Verified bytes.
 */
done_bytes: number, 
/**
 * Bytes of the lease.
 */
total_bytes: number, } | { "kind": "held", 
/**
 * Such as `0:0-15,1:0-15`.
 */
experts: string, };

export type Account = { per_day: Array<DayEarned>, 
/**
 * Credited and not paid out, exactly.
 */
pending_nano_kvr: string, 
/**
 * The same in KVR, five decimals.
 */
pending_kvr: string, 
/**
 * When the newest credit was written, milliseconds since 1970; `null` before the first.
 */
last_credit_unix_ms: number | null, 
/**
 * When the gateway said so, milliseconds since 1970.
 */
asked_unix_ms: number, };

export type Status = { pause: Pause | null, standing_by: StandingBy | null, why_not_earning: Why, devices: Array<Device>, legs: Legs, download: Download | null, confirm_download: ConfirmDownload | null, state_problem: Problem | null, settings: Settings, 
/**
 * All in one word.
 */
state: State, 
/**
 * Whether Contribute was pressed and not taken back.
 */
contributing: boolean, 
/**
 * The wallet.
 */
wallet: WalletStatus, 
/**
 * What computes.
 */
device: DeviceState, 
/**
 * The network that was joined.
 */
network: Network | null, 
/**
 * An invitation that waits for a yes or no.
 */
offer: Network | null, 
/**
 * The way there.
 */
link: Link, 
/**
 * What is held.
 */
slice: Slice, 
/**
 * Assignments answered since Contribute was pressed.
 */
assignments: number, 
/**
 * What the gateway last said of the wallet.
 */
account: Account | null, 
/**
 * Why the account may be out of date.
 */
account_problem: Problem | null, 
/**
 * Why the worker ended although nobody stopped it.
 */
worker_problem: Problem | null, 
/**
 * Why the kept network cannot be used.
 */
network_problem: Problem | null, };

export type Tray = "shown" | "no_host" | "no_library";

export type View = { language: string, is_closing: boolean, starts_at_login: boolean | null, 
/**
 * What the engine says.
 */
engine: Status, 
/**
 * What the shell says.
 */
tray: Tray, 
/**
 * Why the link or file that was opened from outside is no invitation.
 */
opened_problem: Problem | null, 
/**
 * The program's version.
 */
version: string, };

export type Pause = { kind: PauseKind, until_unix_s: number | null };
export type PauseKind = "hour" | "until_resumed";
export type Reason = "schedule" | "battery" | "metered" | "exclusive_app" | "user_active" | "duty";
export type StandingBy = { reason: Reason, detail: string, until_unix_s: number | null };
export type WhyCode = "earning" | "no_wallet" | "no_network" | "no_device" | "paused" | "standing_by" | "offline" | "no_lease" | "downloading" | "being_checked" | "no_work" | "update_required" | "problem";
export type Why = { code: WhyCode, args: { [key in string]?: string } };
export type DeviceKind = "gpu" | "cpu";
export type Device = { id: string, name: string, kind: DeviceKind, on: boolean, used: boolean, why: string | null, memory_bytes: number };
export type Download = { needed_bytes: number, done_bytes: number, free_disk_bytes: number, cap_bytes: number, bytes_per_s: number, eta_s: number | null };
export type ConfirmDownload = { needed_bytes: number, free_disk_bytes: number, cap_bytes: number, eta_s: number | null };
export type Leg = "off" | "up" | "down" | "connecting";
export type Legs = { gateway_rtt_ms: number | null, backbone_rtt_ms: number | null, gateway: Leg, hub: Leg, backbone: Leg };
export type Stored = "keyring" | "password_file" | "none";
export type Needs = "restore" | "password";
export type WalletStatus = { backed_up: boolean, has_phrase: boolean, stored: Stored, needs: Needs | null } & WalletState;
export type DayEarned = { day: string, nano: string };
export type ReceiptLine = { epoch: number, session: string, nano: string, work_bytes: number, voided_bytes: number, unix_s: number, is_final: boolean };
export type Hours = { days: number, from_min: number, to_min: number };
export type Language = "auto" | "en" | "es" | "fr" | "ja" | "ko";
export type Settings = { gateways: Array<string>, vram_cap_bytes: number | null, disk_cap_bytes: number, duty_percent: number, schedule: Array<Hours>, on_battery: boolean, on_metered: boolean, only_when_idle: boolean, pause_for_apps: Array<string>, pause_for_fullscreen: boolean, notifications: boolean, language: Language };
