//! Just enough of PEM and DER to key certificates by their serial number.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Decimal serial number to base64 of the certificate's PEM. `None` when any is broken: GARM
/// then tells of none at all.
pub(crate) fn by_serial(pem: &str) -> Option<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for block in pem.split(BEGIN).skip(1) {
        let (text, _) = block.split_once(END)?;
        let text: String = text.split_whitespace().collect();
        let der = STANDARD.decode(&text).ok()?;
        let mut one = format!("{BEGIN}\n");
        for line in text.as_bytes().chunks(64) {
            one.push_str(std::str::from_utf8(line).ok()?);
            one.push('\n');
        }
        one.push_str(END);
        one.push('\n');
        found.insert(decimal(serial(&der)?), STANDARD.encode(one));
    }
    Some(found)
}

/// `Certificate > TBSCertificate > [0] version, INTEGER serialNumber`.
fn serial(der: &[u8]) -> Option<&[u8]> {
    let (_, certificate) = element(der)?;
    let (_, tbs) = element(certificate)?;
    let (tag, value) = element(tbs)?;
    if tag != 0xa0 {
        return (tag == 0x02).then_some(value);
    }
    let version_end = value.as_ptr() as usize - tbs.as_ptr() as usize + value.len();
    let (tag, value) = element(tbs.get(version_end..)?)?;
    (tag == 0x02).then_some(value)
}

/// The first element's tag and content.
fn element(der: &[u8]) -> Option<(u8, &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    if first < 0x80 {
        return Some((tag, rest.get(..usize::from(first))?));
    }
    let count = usize::from(first & 0x7f);
    if count > 4 {
        return None;
    }
    let length =
        rest.get(..count)?.iter().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte));
    Some((tag, rest.get(count..)?.get(..length)?))
}

/// A big-endian number in decimal.
fn decimal(bytes: &[u8]) -> String {
    let mut digits = vec![0u8];
    for byte in bytes {
        let mut carry = u32::from(*byte);
        for digit in &mut digits {
            carry += u32::from(*digit) * 256;
            *digit = u8::try_from(carry % 10).unwrap_or(0);
            carry /= 10;
        }
        while carry > 0 {
            digits.push(u8::try_from(carry % 10).unwrap_or(0));
            carry /= 10;
        }
    }
    digits.iter().rev().map(|d| char::from(b'0' + d)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_are_decimal() {
        assert_eq!(decimal(&[0]), "0");
        assert_eq!(decimal(&[1, 0]), "256");
        assert_eq!(decimal(&[0xff; 9]), "4722366482869645213695");
    }

    #[test]
    fn each_certificate_has_its_entry_and_a_broken_one_voids_all() {
        let one = crate::PrivateCa::new("one").pem();
        let two = crate::PrivateCa::new("two").pem().replace('\n', "\r\n");
        assert_eq!(by_serial(&format!("{one}{two}")).unwrap().len(), 2);
        assert!(by_serial(&format!("{one}{BEGIN}\n!!!\n{END}\n")).is_none());
        assert!(by_serial("").unwrap().is_empty());
    }
}
