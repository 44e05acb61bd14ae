//! Everything that is written is read back the same, from any pieces; and no bytes can make a reader panic.

use bytes::Bytes;
use kvasir::net::framed::FramedReader;
use kvasir::types::{GateWeight, Hex, PublicKey};
use kvasir::wire::chunk::ExpertChunk;
use kvasir::wire::control::*;
use kvasir::wire::frame::FLAG_FLOAT;
use kvasir::wire::text::plain;
use kvasir::wire::work::{Activations, Assignment, Dispatch, PartialValues, Partials, RowHead, RowStatus};
use kvasir::wire::{Frame, Header, Kind};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;

const HIDDENS: [usize; 6] = [1, 17, 32, 256, 288, 512];

fn kind() -> impl Strategy<Value = Kind> {
    any::<u8>().prop_filter_map("no such kind", |n| Kind::from_number(n).ok())
}

prop_compose! {
    fn header()(
        kind in kind(), float in any::<bool>(), layer in any::<u16>(), request in any::<u64>(),
        rows in 0u32..=2048, assignments in 0u32..=32768, parts in 1u16..=2048, part in any::<u16>(),
    ) -> Header {
        let flags = if float { FLAG_FLOAT } else { 0 };
        Header { kind, flags, layer, request, rows, assignments, body_bytes: 0, part: part % parts, parts }
    }
}

prop_compose! {
    fn frame()(header in header(), body in vec(any::<u8>(), 0..300)) -> Frame {
        Frame::new(header, body).unwrap()
    }
}

/// Row table and assignments, without gate weights.
fn rows() -> impl Strategy<Value = (Vec<RowHead>, Vec<u16>)> {
    vec((any::<i8>(), btree_set(any::<u16>(), 0..6)), 1..5).prop_map(|rows| {
        let (mut heads, mut experts) = (Vec::new(), Vec::new());
        for (grid, own) in rows {
            heads.push(RowHead { grid, count: own.len() as u16, first: experts.len() as u32 });
            experts.extend(own);
        }
        (heads, experts)
    })
}

/// A legal quantised row of `hidden` elements, drawn from `noise`.
fn exact_row(hidden: usize, noise: &mut impl Iterator<Item = u8>) -> Vec<u8> {
    let mut next = move || noise.next().unwrap_or(0);
    let mut out = Vec::new();
    for block in 0..hidden.div_ceil(256) {
        let here = (hidden - 256 * block).min(256);
        if next() % 8 == 0 {
            out.push(0x80);
            out.extend([0; 264]);
            continue;
        }
        out.push((i16::from(next() % 202) - 110) as i8 as u8);
        let scales: Vec<u8> = (0..16).map(|j| if 16 * j >= here { 0 } else { next() & 0xf }).collect();
        out.extend(scales.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4));
        out.extend((0..256).map(|i| match next() {
            0x80 => 0,
            q if i < here => q,
            _ => 0,
        }));
    }
    out
}

prop_compose! {
    fn exact()(
        hidden in prop::sample::select(&HIDDENS[..]), (rows, experts) in rows(), lease in any::<u32>(),
        deadline_ms in any::<u32>(), noise in vec(any::<u8>(), 6000), gates in vec((32768u16.., any::<i8>()), 30),
    ) -> Dispatch {
        let mut noise = noise.into_iter();
        let blocks: Vec<u8> = rows.iter().flat_map(|_| exact_row(hidden, &mut noise)).collect();
        let gate = |(mantissa, exponent)| GateWeight { mantissa, exponent };
        let assignments = experts.into_iter().zip(gates).map(|(expert, g)| Assignment { expert, gate: gate(g) });
        let assignments = assignments.collect();
        Dispatch { lease, deadline_ms, hidden, rows, activations: Activations::Exact(blocks.into()), assignments }
    }
}

prop_compose! {
    fn float()(
        hidden in prop::sample::select(&HIDDENS[..3]), (rows, experts) in rows(), lease in any::<u32>(),
        deadline_ms in any::<u32>(), values in vec(-1e30f32..1e30, 4 * 32),
    ) -> Dispatch {
        let values = values[..rows.len() * hidden].to_vec();
        let gate = GateWeight { mantissa: 0, exponent: 0 };
        let assignments = experts.into_iter().map(|expert| Assignment { expert, gate }).collect();
        Dispatch { lease, deadline_ms, hidden, rows, activations: Activations::Float(values), assignments }
    }
}

fn work_header(kind: Kind, float: bool, rows: usize, assignments: usize) -> Header {
    let flags = if float { FLAG_FLOAT } else { 0 };
    Header { flags, rows: rows as u32, assignments: assignments as u32, ..Header::control(kind) }
}

fn status() -> impl Strategy<Value = RowStatus> {
    prop::sample::select(vec![RowStatus::Ok, RowStatus::Range, RowStatus::Poison])
}

fn there_and_back<C: Control + PartialEq + std::fmt::Debug>(body: &C) {
    assert_eq!(C::read(&body.frame().unwrap()).as_ref(), Ok(body));
}

/// Feeds `bytes` in pieces of the given sizes and reads what is there in between; a reader that is dropped in the
/// middle of a frame loses nothing.
fn read_in_pieces(bytes: &[u8], sizes: &[usize]) -> Vec<Frame> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let (mut reader, mut out, mut rest) = (FramedReader::new(far), Vec::new(), bytes);
        for size in sizes {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            near.write_all(piece).await.unwrap();
            rest = after;
            loop {
                tokio::select! {
                    biased;
                    frame = reader.recv() => out.extend(frame.unwrap()),
                    () = std::future::ready(()) => break,
                }
            }
        }
        near.write_all(rest).await.unwrap();
        drop(near);
        while let Some(frame) = reader.recv().await.unwrap() {
            out.push(frame);
        }
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn a_frame_comes_back_as_it_was(frame in frame()) {
        prop_assert_eq!(Frame::decode(frame.encode().into()), Ok(frame));
    }

    #[test]
    fn frames_come_out_whole_from_any_pieces(frames in vec(frame(), 0..6), sizes in vec(1usize..200, 0..12)) {
        let mut bytes = Vec::new();
        for frame in &frames {
            let encoded = frame.encode();
            bytes.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&encoded);
        }
        prop_assert_eq!(read_in_pieces(&bytes, &sizes), frames);
    }

    #[test]
    fn an_exact_dispatch_comes_back_as_it_was(work in exact()) {
        let header = work_header(Kind::Dispatch, false, work.rows.len(), work.assignments.len());
        prop_assert_eq!(Dispatch::decode(&header, &work.encode().into(), work.hidden), Ok(work));
    }

    #[test]
    fn a_float_dispatch_comes_back_as_it_was(work in float()) {
        let header = work_header(Kind::Dispatch, true, work.rows.len(), work.assignments.len());
        prop_assert_eq!(Dispatch::decode(&header, &work.encode().into(), work.hidden), Ok(work));
    }

    #[test]
    fn exact_partials_come_back_as_they_were(
        rows in vec((status(), vec(any::<i32>(), 17)), 1..6), assignments in 0usize..100,
    ) {
        let sums = rows.iter().flat_map(|(status, sums)| match status {
            RowStatus::Ok => sums.clone(),
            _ => vec![0; sums.len()],
        });
        let values = PartialValues::Exact(sums.collect());
        let partials = Partials { status: rows.iter().map(|row| row.0).collect(), values };
        let header = work_header(Kind::Partials, false, rows.len(), assignments);
        let back = Partials::decode(&header, &partials.encode(17).into(), 17, rows.len(), assignments);
        prop_assert_eq!(back, Ok(partials));
    }

    #[test]
    fn float_partials_come_back_as_they_were(
        status in vec(status(), 1..6), values in vec(vec(-1e30f32..1e30, 5), 0..9),
    ) {
        let (rows, assignments) = (status.len(), values.len());
        let partials = Partials { status, values: PartialValues::Float(values.concat()) };
        let header = work_header(Kind::Partials, true, rows, assignments);
        let back = Partials::decode(&header, &partials.encode(5).into(), 5, rows, assignments);
        prop_assert_eq!(back, Ok(partials));
    }

    #[test]
    fn control_bodies_come_back_as_they_were(
        text in any::<String>(), n in any::<u64>(), m in any::<u32>(), id in any::<[u8; 16]>(), key in any::<[u8; 32]>(),
        experts in btree_map(any::<u16>(), vec(any::<(u16, u16)>(), 0..4), 0..4),
    ) {
        let text = plain(&text);
        there_and_back(&Refuse { reason: text.clone(), retry_after_ms: (n % 2 == 0).then_some(n) });
        let wants = experts.keys().copied().collect();
        // JSON numbers are read to the last bit or the one beside it; a self-test's rate needs no more.
        let rate = f64::from(m);
        there_and_back(&Offer { device: text.clone(), memory_bytes: n, assignments_per_s: rate, wants });
        there_and_back(&Lease { lease: m, manifest: Hex(key), experts: experts.clone(), expires_ms: n });
        there_and_back(&Release { lease: m, experts });
        there_and_back(&Verdict { request: n, part: m as u16, accepted: m, refused: m, reason: text.clone() });
        let (session_id, wallet) = (Hex(id), PublicKey(key));
        there_and_back(&SessionOpen {
            session_id,
            wallet,
            worker_id: Hex(id),
            peer_ip_hash: Hex(id),
            round_trip_us: n,
        });
        there_and_back(&Quarantine { wallet, session_id, void_from_request: n, reason: text });
    }

    #[test]
    fn no_bytes_make_a_reader_panic(
        header in header(), bytes in vec(any::<u8>(), 0..700), hidden in 0usize..600, rows in 0u32..4,
        assignments in 0u32..8,
    ) {
        let body = Bytes::from(bytes.clone());
        let _ = Header::decode(&bytes);
        let _ = Frame::decode(body.clone());
        let small = Header { rows, assignments, ..header };
        for header in [header, small] {
            let _ = Dispatch::decode(&header, &body, hidden);
            let _ = Partials::decode(&header, &body, hidden, header.rows as usize, header.assignments as usize);
        }
        let frame = |kind| Frame::new(Header::control(kind), body.clone()).unwrap();
        let _ = ExpertChunk::read(&frame(Kind::ExpertChunk));
        let _ = Lease::read(&frame(Kind::Lease));
        let _ = Receipt::read(&frame(Kind::Receipt));
    }
}
