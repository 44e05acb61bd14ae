//! The byte-level alphabet: every byte as one printable character, as GPT-2 introduced it.
//!
//! Printable Latin-1 bytes stand for themselves, the 68 others for U+0100 onwards in order.

/// The bytes that stand for themselves.
fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The 68 bytes that stand as U+0100 + index.
const fn displaced() -> [u8; 68] {
    let mut out = [0; 68];
    let (mut byte, mut i) = (0u8, 0);
    loop {
        if !matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            out[i] = byte;
            i += 1;
        }
        if byte == 255 {
            return out;
        }
        byte += 1;
    }
}

const DISPLACED: [u8; 68] = displaced();

/// The character that stands for `byte`.
pub(super) fn character(byte: u8) -> char {
    match DISPLACED.iter().position(|b| *b == byte) {
        None => char::from(byte),
        Some(i) => char::from_u32(0x100 + i as u32).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}

/// Appends the bytes that `token` stands for; a character outside of the alphabet stands for its own UTF-8.
pub(super) fn decode(token: &str, bytes: &mut Vec<u8>) {
    for c in token.chars() {
        let code = c as usize;
        match (u8::try_from(code), code.checked_sub(0x100).and_then(|i| DISPLACED.get(i))) {
            (Ok(byte), _) if is_printable(byte) => bytes.push(byte),
            (_, Some(byte)) => bytes.push(*byte),
            _ => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character_and_comes_back() {
        let alphabet: String = (0..=255).map(character).collect();
        let mut bytes = Vec::new();
        decode(&alphabet, &mut bytes);
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(character(b' '), 'Ġ');
        assert_eq!(character(b'\n'), 'Ċ');
    }
}
