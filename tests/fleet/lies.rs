//! What a worker may say instead of the right answer.

use kvasir::wire::{Frame, Header};

use super::dice::Dice;

/// Something else than the right answer.
pub enum Lie {
    /// Nothing at all.
    Silence,
    /// That it will not answer.
    Refusal,
    /// The right answer, and then once more.
    Twice,
    /// A frame that is not what was asked for.
    Wrong(Frame),
}

/// Draws a lie in place of `answer`.
pub fn draw(dice: &mut Dice, answer: &Frame) -> Lie {
    let Frame { header, body } = answer.clone();
    let frame = |header, body: &[u8]| Lie::Wrong(Frame::new(header, body.to_vec()).unwrap());
    match dice.below(8) {
        0 => Lie::Silence,
        1 => Lie::Refusal,
        2 => Lie::Twice,
        3 => frame(header, &body[..body.len() - 1]),
        4 => frame(Header { request: header.request + 1_000_000, ..header }, &body),
        5 => frame(Header { part: header.part + 1, parts: header.parts + 1, ..header }, &body),
        6 => {
            // Off by one: only who computes it again can tell.
            let mut body = body.to_vec();
            body[1] ^= 1;
            frame(header, &body)
        }
        _ => {
            // A value that no sum of legal outputs reaches.
            let mut body = body.to_vec();
            body[1..5].copy_from_slice(&i32::MAX.to_le_bytes());
            frame(header, &body)
        }
    }
}
