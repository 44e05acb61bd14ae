//! How far and how fast the gateway is, and whether its clock agrees with ours: from a few small requests.

use std::time::Duration;

use tokio::time::Instant;

use super::Options;
use super::exchange::{Exchanged, Request, exchange};
use super::legs::left;
use super::report::Check;
use crate::net::https::Gateway;
use crate::wire::speed::{SPEED_BYTES_MAX, SPEED_PATH, content};

pub(super) const CLOCK: (&str, &str) = ("clock", "Clock");
pub(super) const RTT: (&str, &str) = ("rtt", "Round trip");
pub(super) const SPEED: (&str, &str) = ("speed", "Speed");

/// A clock may be off by this much without anybody noticing.
const CLOCK_FINE: Duration = Duration::from_secs(60);
/// Beyond this, certificates and join codes are judged wrongly.
const CLOCK_WRONG: Duration = Duration::from_secs(10 * 60);
/// Requests whose fastest tells the round trip.
const PINGS: usize = 3;
/// Above this a token of many layers takes seconds, and placement passes this worker over.
const RTT_FAR: Duration = Duration::from_millis(250);
/// Longest transfer in each direction.
const TRANSFER: Duration = Duration::from_millis(1500);
/// What is over sooner tells no speed beyond some Gbit/s.
const SHORTEST: Duration = Duration::from_millis(1);
/// Below this the first GiB takes more than half an hour.
const MBIT_SLOW: f64 = 4.0;

/// The checks that need answers of the gateway, on connections of their own.
pub(super) async fn measure(options: &Options, gateway: &Gateway, until: Instant) -> Vec<Check> {
    let host = gateway.base().trim_start_matches("https://");
    let health = Request { host, method: "GET", path: "/healthz", body: &[] };
    let (mut clock, mut rtt) = (None, None::<Duration>);
    for _ in 0..PINGS {
        let Ok(mut stream) = gateway.open(left(until)).await else { break };
        let Ok(answer) = exchange(&mut stream, &health, 0, until).await else { break };
        clock.get_or_insert_with(|| judge_clock(options, &answer));
        rtt = Some(rtt.map_or(answer.to_head, |rtt| rtt.min(answer.to_head)));
    }
    let mut checks = Vec::from_iter(clock);
    if let Some(rtt) = rtt {
        checks.push(judge_rtt(rtt));
        checks.push(speed(gateway, host, rtt, until).await);
    }
    checks
}

fn judge_clock(options: &Options, answer: &Exchanged) -> Check {
    let (id, title) = CLOCK;
    let date = answer.head.headers.only("date").and_then(|date| httpdate::parse_http_date(date).ok());
    let theirs = date.and_then(|date| date.duration_since(std::time::UNIX_EPOCH).ok());
    let Some(theirs) = theirs else {
        return Check::warn(id, title, "the gateway tells no time", "compare this machine's clock with a radio clock");
    };
    // The date has whole seconds and was right half a round trip ago: neither matters here.
    let ours = Duration::from_millis(options.clock.unix_ms());
    let (off, way) = if ours >= theirs { (ours - theirs, "ahead of") } else { (theirs - ours, "behind") };
    if off <= CLOCK_FINE {
        return Check::ok(id, title, "agrees with the gateway's");
    }
    let found = format!("{} {way} the gateway's", minutes(off));
    let remedy = "turn on the system's time synchronisation (timedatectl set-ntp true): certificates, join codes and \
                  claims are judged by this clock";
    if off > CLOCK_WRONG { Check::fail(id, title, found, remedy) } else { Check::warn(id, title, found, remedy) }
}

fn minutes(off: Duration) -> String {
    match (off.as_secs() + 30) / 60 {
        minutes @ 0..120 => format!("{minutes} minutes"),
        minutes @ 120..2880 => format!("{} hours", (minutes + 30) / 60),
        minutes => format!("{} days", (minutes + 720) / 1440),
    }
}

fn judge_rtt(rtt: Duration) -> Check {
    let (id, title) = RTT;
    let found = format!("{:.1} ms", rtt.as_secs_f64() * 1e3);
    if rtt <= RTT_FAR {
        return Check::ok(id, title, found);
    }
    Check::warn(id, title, found, "use a nearer gateway, or a cable in place of the radio: far workers get less to do")
}

/// A transfer each way.
async fn speed(gateway: &Gateway, host: &str, rtt: Duration, until: Instant) -> Check {
    let (id, title) = SPEED;
    let down = format!("{SPEED_PATH}?bytes={SPEED_BYTES_MAX}");
    let down = Request { host, method: "GET", path: &down, body: &[] };
    let content = content();
    let up = Request { host, method: "POST", path: SPEED_PATH, body: &content };
    let (down, up) = (transfer(gateway, &down, until).await, transfer(gateway, &up, until).await);
    let (Some(down), Some(up)) = (down, up) else {
        let remedy = "try again later, or ask the operator: the connection itself works";
        return Check::warn(id, title, "the small transfers did not end in time", remedy);
    };
    match (down.head.status, up.head.status) {
        (200, 200) => {}
        (429, _) | (_, 429) => return Check::ok(id, title, "the gateway was asked too often to measure it again now"),
        _ => return Check::ok(id, title, "this gateway measures none"),
    }
    let mbit = |bytes: usize, took: Duration| bytes as f64 * 8e-6 / took.max(SHORTEST).as_secs_f64();
    let (down, up) = (mbit(down.body_bytes, down.to_end), mbit(content.len(), up.to_head.saturating_sub(rtt)));
    let found = format!("{down:.0} Mbit/s down, {up:.0} up (of {} KiB)", SPEED_BYTES_MAX / 1024);
    if down.min(up) >= MBIT_SLOW {
        return Check::ok(id, title, found);
    }
    let remedy = "experts are fetched once and may take hours; a small --memory fetches less";
    Check::warn(id, title, found, remedy)
}

async fn transfer(gateway: &Gateway, request: &Request<'_>, until: Instant) -> Option<Exchanged> {
    let until = until.min(Instant::now() + TRANSFER);
    let mut stream = gateway.open(left(until)).await.ok()?;
    exchange(&mut stream, request, SPEED_BYTES_MAX, until).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn how_far_a_clock_is_off_is_told_in_words() {
        let told = [61, 3540, 3601, 7300, 90_000, 400_000].map(|s| minutes(Duration::from_secs(s)));
        assert_eq!(told, ["1 minutes", "59 minutes", "60 minutes", "2 hours", "25 hours", "5 days"]);
        assert_eq!(judge_rtt(Duration::from_millis(13)).verdict, Verdict::Ok);
        assert_eq!(judge_rtt(Duration::from_millis(300)).verdict, Verdict::Warn);
    }
}
