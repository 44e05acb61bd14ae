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

export type Account = { 
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

export type Status = { 
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
wallet: WalletState, 
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

export type View = { 
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
