//! An inspection as people read it.

use std::collections::BTreeMap;
use std::fmt;

use super::Inspection;

/// Bytes in decimal units, three digits: 5,308,416 → `5.31 MB`.
pub(super) fn bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, "B");
    for larger in ["kB", "MB", "GB", "TB"] {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    let decimals = if unit == "B" || value >= 99.95 { 0 } else { 1 + usize::from(value < 9.995) };
    format!("{value:.decimals$} {unit}")
}

/// Digits in threes: 5308416 → `5,308,416`.
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.char_indices() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn types(types: &BTreeMap<&'static str, u64>) -> String {
    types.iter().map(|(name, n)| format!("{name} {}", bytes(*n))).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attention = self.layers - self.recurrent_layers;
        let [heads, kv_heads, head_dim] = self.attention;
        let words = match (self.tokenizer, self.chat_template) {
            (true, true) => "tokenizer and chat template",
            (true, false) => "tokenizer, no chat template",
            (false, _) => "no tokenizer",
        };
        writeln!(f, "{} ({}), {} parameters", self.name, self.architecture, self.parameters)?;
        writeln!(
            f,
            "  layers      {} ({} recurrent, {attention} attention) + {} MTP",
            self.layers, self.recurrent_layers, self.mtp_layers
        )?;
        writeln!(
            f,
            "  hidden      {}, vocabulary {}, context {}",
            self.hidden_size, self.vocab_size, self.context_length
        )?;
        writeln!(f, "  attention   {heads} heads, {kv_heads} key/value heads of {head_dim}")?;
        writeln!(
            f,
            "  experts     {} per layer, {} in all, top-{}, intermediate {}, {}",
            self.experts,
            grouped(self.experts_total as u64),
            self.experts_per_token,
            self.intermediate_size,
            if self.exact { "exact" } else { "float" }
        )?;
        for kind in &self.expert_kinds {
            let [gate, up, down] = kind.types;
            let types = if gate == up && up == down { gate.to_owned() } else { format!("{gate}, {up}, {down}") };
            let layers = if kind.layers == 1 { "layer" } else { "layers" };
            writeln!(f, "  one expert  {} B ({types}) in {} {layers}", grouped(kind.bytes), kind.layers)?;
        }
        writeln!(f, "  expert bytes    {} ({})", bytes(self.expert_bytes), types(&self.expert_types))?;
        writeln!(f, "  backbone bytes  {} ({})", bytes(self.backbone_bytes), types(&self.backbone_types))?;
        write!(f, "  words       {words}")?;
        self.slice.as_ref().map_or(Ok(()), |slice| write!(f, "\n  slice       {slice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_in_three_digits() {
        let cases = [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (5_308_416, "5.31 MB"), (10_030_000, "10.0 MB")];
        for (n, expected) in cases.into_iter().chain([(999_600, "1.00 MB"), (66_600_000_000, "66.6 GB")]) {
            assert_eq!(bytes(n), expected);
        }
    }

    #[test]
    fn digits_stand_in_threes() {
        for (n, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (12_544, "12,544"), (5_308_416, "5,308,416")] {
            assert_eq!(grouped(n), expected);
        }
    }
}
