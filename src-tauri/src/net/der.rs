//! Reads the issuer and the end of a certificate, for what people are told. Trust is never decided here.

use crate::wire::text::plain;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Object ids of a common name and of an organisation (RFC 5280, appendix A).
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANISATION: [u8; 3] = [0x55, 0x04, 0x0a];

/// What a certificate says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Common name of its issuer, with the organisation: "R3 (Let's Encrypt)".
    pub issuer: String,
    /// When it ends, seconds since 1970.
    pub ends_unix_s: i64,
}

/// What the certificate in `der` says; `None` for bytes that are no certificate.
#[must_use]
pub fn about(der: &[u8]) -> Option<About> {
    let mut certificate = Der(Der(der).expect(SEQUENCE)?);
    let mut fields = Der(certificate.expect(SEQUENCE)?);
    if fields.0.first() == Some(&VERSION) {
        fields.next()?;
    }
    let (_serial, _algorithm) = (fields.next()?, fields.next()?);
    let issuer = name(fields.expect(SEQUENCE)?)?;
    let mut validity = Der(fields.expect(SEQUENCE)?);
    validity.next()?;
    let (tag, end) = validity.next()?;
    Some(About { issuer, ends_unix_s: unix_s(tag, end)? })
}

/// What is left of a run of values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next value: its tag and its content.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (length, rest) = rest.split_first()?;
        let (length, rest) = match usize::from(*length) {
            short @ 0..=0x7f => (short, rest),
            // Certificates are far below 16 MiB.
            long @ 0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(long - 0x80)?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((*tag, content))
    }

    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(got, _)| *got == tag).map(|(_, content)| content)
    }
}

fn name(parts: &[u8]) -> Option<String> {
    let (mut common, mut organisation) = (None, None);
    let mut parts = Der(parts);
    while !parts.0.is_empty() {
        let mut set = Der(parts.expect(SET)?);
        let mut pair = Der(set.expect(SEQUENCE)?);
        let ((_, id), (_, text)) = (pair.next()?, pair.next()?);
        let text = plain(&String::from_utf8_lossy(text));
        match id {
            id if id == COMMON_NAME => common = Some(text),
            id if id == ORGANISATION => organisation = Some(text),
            _ => {}
        }
    }
    Some(match (common, organisation) {
        (Some(common), Some(organisation)) => format!("{common} ({organisation})"),
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => "an issuer without a name".to_owned(),
    })
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn unix_s(tag: u8, text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let year: i64 = text.get(..2)?.parse().ok()?;
            (year + if year < 50 { 2000 } else { 1900 }, text.get(2..)?)
        }
        GENERALIZED_TIME => (text.get(..4)?.parse().ok()?, text.get(4..)?),
        _ => return None,
    };
    let two = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day, hour, minute, second) = (two(0)?, two(2)?, two(4)?, two(6)?, two(8)?);
    // Days since 1970 of a Gregorian date, counted in years that begin in March (Howard Hinnant, "days_from_civil").
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::TrialCertificates;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    #[test]
    fn a_certificate_names_its_issuer_and_its_end() {
        let trial = TrialCertificates::generate(&["localhost"]).unwrap();
        let cert = CertificateDer::from_pem_slice(trial.cert_pem.as_bytes()).unwrap();
        let about = about(&cert).unwrap();
        assert_eq!(about.issuer, "Kvasir trial authority");
        assert_eq!(about.ends_unix_s, unix_s(GENERALIZED_TIME, b"40960101000000Z").unwrap());
        for length in 0..cert.len() {
            // Whatever is cut off, nothing breaks.
            let _ = super::about(&cert[..length]);
        }
    }

    #[test]
    fn both_ways_to_write_a_time_are_understood() {
        assert_eq!(unix_s(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(unix_s(UTC_TIME, b"260228235959Z"), Some(1_772_323_199));
        assert_eq!(unix_s(GENERALIZED_TIME, b"20240229120000Z"), Some(1_709_208_000));
        assert_eq!(unix_s(GENERALIZED_TIME, b"202402291200Z"), None);
    }
}
