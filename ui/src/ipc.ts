// Written from src-tauri/src/engine/ by its test; KVASIR_WRITE_TYPES=1 writes it anew.

export type State = "idle" | "working" | "paused" | "error" | "offline";

export type Problem = { 
/** Such as `invite_expired`. */ code: string, 
/** What was expected, what there was, and what to do. */ message: string, };

export type WalletState = { "kind": "opening" } | { "kind": "ready", 
/** base58. */ address: string, } | { "kind": "key_missing", 
/** base58. */ address: string, 
/** Where the key should be, and what to do. */ problem: Problem, } | { "kind": "failed", 
/** Why. */ problem: Problem, };

export type Stored = "keyring" | "password_file" | "none";

export type Needs = "restore" | "password";

export type WalletStatus = { 
/** Whether its owner has shown to have the backup phrase. */ backed_up: boolean, 
/** Whether it has a phrase; wallets of before phrases have only their key to back up. */ has_phrase: boolean, 
/** Where its key is. */ stored: Stored, 
/** What it waits for. */ needs: Needs | null, } & ({ "kind": "opening" } | { "kind": "ready", 
/** base58. */ address: string, } | { "kind": "key_missing", 
/** base58. */ address: string, 
/** Where the key should be, and what to do. */ problem: Problem, } | { "kind": "failed", 
/** Why. */ problem: Problem, });

export type DeviceState = { "kind": "opening" } | { "kind": "ready", 
/** The hardware and its path. */ name: string, 
/** Completes "because …"; empty when there was nothing to choose. */ why: string, } | { "kind": "failed", 
/** Why. */ problem: Problem, };

export type DeviceKind = "gpu" | "cpu";

export type Device = { 
/** The same for the same hardware, whatever is plugged in beside it. */ id: string, 
/** For people. */ name: string, 
/** GPU or CPU. */ kind: DeviceKind, 
/** Whether its owner lets it compute. */ on: boolean, 
/** Whether it computes, or would. */ used: boolean, 
/** Why it is used or not; `null` when there is nothing to say. */ why: string | null, 
/** Its memory; 0 when nobody tells. */ memory_bytes: number, };

export type Network = { 
/** The operator's public key. */ operator: string, 
/** Where its gateways are. */ gateways: Array<string>, 
/** Until when its code may be taken, milliseconds since 1970. */ expires_unix_ms: number, };

export type Link = { "kind": "off" } | { "kind": "starting" } | { "kind": "connecting", 
/** Whom. */ gateway: string, } | { "kind": "online" } | { "kind": "no_hardware", 
/** What the driver said. */ reason: string, } | { "kind": "waiting", 
/** Why the last one ended. */ reason: string, 
/** The whole pause. */ retry_ms: number, };

export type Leg = "off" | "up" | "down" | "connecting";

export type Legs = { 
/** Round trip to the gateway; `null` when it was not measured. */ gateway_rtt_ms: number | null, 
/** Round trip to the hub beside the backbone; `null` when it was not measured. */ backbone_rtt_ms: number | null, 
/** From here to the gateway. */ gateway: Leg, 
/** From the gateway to the hub. */ hub: Leg, 
/** From the hub to the backbone. */ backbone: Leg, };

export type Slice = { "kind": "nothing" } | { "kind": "fetching", 
/** Verified bytes. */ done_bytes: number, 
/** Bytes of the lease. */ total_bytes: number, } | { "kind": "held", 
/** Such as `0:0-15,1:0-15`. */ experts: string, };

export type Download = { 
/** Bytes of the slice. */ needed_bytes: number, 
/** Bytes of it that are here and verified. */ done_bytes: number, 
/** Free bytes of the disk. */ free_disk_bytes: number, 
/** Most bytes that slices may take of the disk. */ cap_bytes: number, 
/** Measured of late; 0 before anything came. */ bytes_per_s: number, 
/** Seconds that the rest takes at this speed; `null` before it is known. */ eta_s: number | null, };

export type ConfirmDownload = { 
/** Bytes that would be fetched. */ needed_bytes: number, 
/** Free bytes of the disk. */ free_disk_bytes: number, 
/** Most bytes that slices may take of the disk. */ cap_bytes: number, 
/** Seconds that it would take, where an earlier download tells. */ eta_s: number | null, };

export type PauseKind = "hour" | "until_resumed";

export type Pause = { 
/** Which kind. */ kind: PauseKind, 
/** When it ends by itself, in seconds since 1970. */ until_unix_s: number | null, };

export type Reason = "schedule" | "battery" | "metered" | "exclusive_app" | "user_active" | "duty";

export type StandingBy = { 
/** Why. */ reason: Reason, 
/** Whose fault it is, such as a program's name; may be empty. */ detail: string, 
/** When it ends, where that is known. */ until_unix_s: number | null, };

export type WhyCode = "earning" | "no_wallet" | "no_network" | "no_device" | "paused" | "standing_by" | "connecting" | "offline" | "no_lease" | "downloading" | "being_checked" | "no_work" | "update_required" | "problem";

export type Why = { 
/** Which. */ code: WhyCode, 
/** Values for its words. */ args: { [key in string]: string }, };

export type DayEarned = { 
/** `2026-12-01`, UTC. */ day: string, 
/** Nano-KVR credited on it. */ nano: string, };

export type Account = { 
/** Credited and not paid out, exactly. */ pending_nano_kvr: string, 
/** The same in KVR, five decimals. */ pending_kvr: string, 
/** When the newest credit was written, milliseconds since 1970; `null` before the first. */ last_credit_unix_ms: number | null, 
/** The same in seconds. */ last_credit_unix_s: number | null, 
/** What the newest days brought, oldest first; at most 30, days without credit left out. */ per_day: Array<DayEarned>, 
/** When the gateway said so, milliseconds since 1970. */ asked_unix_ms: number, };

export type ReceiptLine = { 
/** The hub's epoch. */ epoch: number, 
/** The session, in hex. */ session: string, 
/** Nano-KVR that it is worth at the newest rate; `null` before any credit has told the rate. */ nano: string | null, 
/** Work bytes that the hub signed for. */ work_bytes: number, 
/** Of those, voided. */ voided_bytes: number, 
/** When it was written, in seconds since 1970. */ unix_s: number, 
/** Whether it is its session's last. */ is_final: boolean, };

export type ClaimRoom = { 
/** Credited, old enough and not paid. */ nano: string, 
/** Of that, already claimed and waiting to be paid. */ waiting_nano: string, };

export type Hours = { 
/** Days on which they begin: Monday is 1, Tuesday 2, Wednesday 4, …, Sunday 64. */ days: number, 
/** First minute of the day, 0–1439. */ from_min: number, 
/** The minute after the last, 0–1440; not after `from_min` means that they end on the next day. */ to_min: number, };

export type Language = "auto" | "en" | "es" | "fr" | "ja" | "ko";

export type Settings = { 
/** Gateways to dial in place of those of the join code; none = those. */ gateways: Array<string>, 
/** Most bytes of the device's memory; `null` = what it has room for. */ vram_cap_bytes: number | null, 
/** Most bytes of the disk that slices may take. */ disk_cap_bytes: number, 
/** Whether the desktop may be told of things. */ notifications: boolean, 
/** The window's language. */ language: Language, 
/** Part of the time that may be computed, 0–100. */ duty_percent: number, 
/** Hours in which work is welcome; none = always. */ schedule: Array<Hours>, 
/** Whether to work on battery. */ on_battery: boolean, 
/** Whether to work on a metered connection. */ on_metered: boolean, 
/** Whether to work only while nobody is at the machine. */ only_when_idle: boolean, 
/** Names of programs that want the machine for themselves. */ pause_for_apps: Array<string>, 
/** Whether a program that fills the screen is one of them. */ pause_for_fullscreen: boolean, };

export type Status = { 
/** All in one word. */ state: State, 
/** Whether Contribute was pressed and not taken back, restarts included. */ contributing: boolean, 
/** A pause that its owner asked for. */ pause: Pause | null, 
/** Whether courtesy holds work back. */ standing_by: StandingBy | null, 
/** Why nothing is earned, or that something is: always one reason. */ why_not_earning: Why, 
/** The wallet. */ wallet: WalletStatus, 
/** What computes. */ device: DeviceState, 
/** Everything that could. */ devices: Array<Device>, 
/** The network that was joined. */ network: Network | null, 
/** An invitation that waits for a yes or no. */ offer: Network | null, 
/** The way there. */ link: Link, 
/** The same, leg by leg. */ legs: Legs, 
/** What is held. */ slice: Slice, 
/** Experts on their way. */ download: Download | null, 
/** A large download that waits for a yes. */ confirm_download: ConfirmDownload | null, 
/** Assignments answered since Contribute was pressed. */ assignments: number, 
/** What the gateway last said of the wallet. */ account: Account | null, 
/** Why the account may be out of date. */ account_problem: Problem | null, 
/** Why the worker ended although nobody stopped it. */ worker_problem: Problem | null, 
/** Why the kept network cannot be used. */ network_problem: Problem | null, 
/** Why settings or other files of the state directory are not what was kept. */ state_problem: Problem | null, 
/** What the owner has chosen. */ settings: Settings, };

export type Tray = "shown" | "no_host" | "no_library";

export type NewRelease = { "kind": "none" } | { "kind": "not_known" } | { "kind": "asking" } | { "kind": "newest" } | { "kind": "unknown", 
/** Why. */ problem: Problem, } | { "kind": "found", 
/** Its version. */ version: string, } | { "kind": "fetching", 
/** Its version. */ version: string, } | { "kind": "failed", 
/** Its version. */ version: string, 
/** Why. */ problem: Problem, };

export type View = { 
/** What the engine says. */ engine: Status, 
/** What the shell says. */ tray: Tray, 
/** Why the link or file that was opened from outside is no invitation. */ opened_problem: Problem | null, 
/** The program's version. */ version: string, 
/** The language that is spoken, such as `fr`. */ language: string, 
/** Whether the window was asked to close for the first time, which is explained before. */ is_closing: boolean, 
/** Whether the program starts with its owner's session; `null` where it cannot arrange that. */ starts_at_login: boolean | null, 
/** Whether every program that fills the screen can be seen; on Wayland only those of X11 can. */ sees_fullscreen: boolean, 
/** The newer release, in a build that looks for one. */ new_release: NewRelease, };
