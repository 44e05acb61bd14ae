//! Twelve KiB there and back through every hop: worker, gateway, hub, backbone. A socket on the road that holds back
//! small writes until the ones before are acknowledged costs 40 ms and more, each time: whoever got the first half has
//! nothing to say, so its kernel delays the acknowledgement, and each half is too small to go without.

use std::time::{Duration, Instant};

use kvasir::wire::Frame;
use kvasir::wire::frame::{Header, Kind};

use crate::hostile::Public;
use crate::hub::world::partials;

/// Two of these make 12 KiB; the second leaves when the first has arrived.
const BYTES: usize = 6 * 1024;
/// Rows whose partials are as long.
const ROWS: u32 = 6;
const TRIPS: usize = 40;

#[tokio::test]
async fn twelve_kib_in_two_frames_pass_every_hop_and_come_back_within_5_ms() {
    let public = Public::start().await;
    let (mut worker, mut backbone) = public.session(7).await;
    let (mut medians, mut request) = (Vec::new(), 0);
    // A machine that is busy with something else slows some of the rounds; a delayed acknowledgement slows all.
    for _ in 0..5 {
        let mut times = Vec::new();
        for _ in 0..TRIPS {
            let start = Instant::now();
            let mut asked = Vec::new();
            for part in 1..=2 {
                let control = Header::control(Kind::Dispatch);
                let header = Header { request: request + part, rows: ROWS, assignments: ROWS, layer: 3, ..control };
                backbone.send(&Frame::new(header, vec![0; BYTES]).expect("a frame")).await;
                asked.push(worker.work().await);
            }
            for dispatch in asked {
                worker.send(&partials(&dispatch.header)).await;
                let answer = backbone.recv().await.expect("an answer");
                assert!(answer.header.kind == Kind::Partials && answer.body.len() > BYTES);
            }
            times.push(start.elapsed());
            request += 2;
        }
        times.sort_unstable();
        medians.push(times[TRIPS / 2]);
        if times[TRIPS / 2] < Duration::from_millis(5) {
            return;
        }
    }
    panic!("expected a median below 5 ms in one of {} rounds, got {medians:?}", medians.len());
}
