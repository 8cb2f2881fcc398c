//! When a certificate expires: read from its DER form, without the rest of X.509.

use chrono::{DateTime, NaiveDate, Utc};

const SEQUENCE: u8 = 0x30;
/// The version of the certificate, which stands before the serial number.
const EXPLICIT_VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// One element: its tag, its content, and what follows.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    rest: &'a [u8],
}

fn read(bytes: &[u8]) -> Option<Element<'_>> {
    let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The length in up to four bytes.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some(Element { tag, content, rest })
}

fn sequence(bytes: &[u8]) -> Option<Element<'_>> {
    read(bytes).filter(|element| element.tag == SEQUENCE)
}

/// The end of the validity. `None` if this is not a certificate.
pub(crate) fn not_after(certificate: &[u8]) -> Option<DateTime<Utc>> {
    let signed = sequence(sequence(certificate)?.content)?.content;
    let first = read(signed)?;
    let serial = if first.tag == EXPLICIT_VERSION { read(first.rest)? } else { first };
    let algorithm = sequence(serial.rest)?;
    let issuer = sequence(algorithm.rest)?;
    let validity = sequence(issuer.rest)?;
    let begin = read(validity.content)?;
    time(&read(begin.rest)?)
}

/// `YYMMDDHHMMSSZ`, or from 2050 on `YYYYMMDDHHMMSSZ`.
fn time(element: &Element<'_>) -> Option<DateTime<Utc>> {
    let text = std::str::from_utf8(element.content).ok()?.strip_suffix('Z')?;
    let (year, rest) = match element.tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i32 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let number = |at: usize| rest.get(at..at + 2)?.parse::<u32>().ok();
    let date = NaiveDate::from_ymd_opt(year, number(0)?, number(2)?)?;
    Some(date.and_hms_opt(number(4)?, number(6)?, number(8)?)?.and_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_the_validity_is_read_from_real_certificates() {
        for year in [2031, 2049, 2050, 3000] {
            let mut parameters = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
            parameters.not_after = rcgen::date_time_ymd(year, 5, 17);
            let certificate = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
            let expected = NaiveDate::from_ymd_opt(year, 5, 17).unwrap().and_hms_opt(0, 0, 0).unwrap();
            assert_eq!(not_after(certificate.der()), Some(expected.and_utc()));
        }
    }

    #[test]
    fn damaged_certificates_have_no_end() {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let bytes = certificate.der().to_vec();
        for length in 0..bytes.len() {
            assert_eq!(not_after(&bytes[..length]), None, "{length}");
        }
        assert_eq!(not_after(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
