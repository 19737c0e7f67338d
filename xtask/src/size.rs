//! What of a binary belongs to which crate.
//!
//! The sizes of its functions and data are added up by the crate that stands in their names. A generic
//! function counts for the crate that its name begins with, wherever it was made; tables for unwinding and
//! strings have no symbol and no crate.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

const SHOWN: usize = 20;
const SYMTAB: u64 = 2;

/// The largest crates of `elf`, a line each.
pub(crate) fn table(elf: &[u8]) -> Result<String> {
    let sizes = by_crate(elf).context("the binary's symbols cannot be read")?;
    ensure!(!sizes.is_empty(), "the binary has no symbols");
    let total: u64 = sizes.values().sum();
    let mut rows: Vec<_> = sizes.into_iter().collect();
    rows.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let mut text = format!("{:>9}  crate\n", "bytes");
    for (name, size) in rows.iter().take(SHOWN) {
        let _ = writeln!(text, "{size:>9}  {name}");
    }
    let _ = writeln!(text, "{total:>9}  in all, of what has a name");
    Ok(text)
}

/// Bytes by crate, from the symbol table of a 64-bit little-endian ELF file.
fn by_crate(elf: &[u8]) -> Option<BTreeMap<String, u64>> {
    let sections = number(elf, 40, 8)?;
    let (entry, count) = (number(elf, 58, 2)?, number(elf, 60, 2)?);
    let section = |n: u64| sections + n * entry;
    let symtab = (0..count).map(section).find(|at| number(elf, at + 4, 4) == Some(SYMTAB))?;
    let (from, length) = (number(elf, symtab + 24, 8)?, number(elf, symtab + 32, 8)?);
    let names = number(elf, section(number(elf, symtab + 40, 4)?) + 24, 8)?;
    let mut sizes = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for at in (from..from + length).step_by(24) {
        let (value, size) = (number(elf, at + 8, 8)?, number(elf, at + 16, 8)?);
        // Several names may stand for one function, and .bss takes no room in the file.
        if size > 0 && seen.insert(value) {
            let name = text(elf, names + number(elf, at, 4)?)?;
            *sizes.entry(crate_of(name).to_owned()).or_default() += size;
        }
    }
    Some(sizes)
}

/// The crate in a mangled name, in the older or the newer form.
fn crate_of(name: &str) -> &str {
    const FOREIGN: &str = "(C and assembler)";
    let found = match (name.strip_prefix("_ZN"), name.strip_prefix("_R")) {
        (Some(path), _) => {
            let part = path.trim_start_matches(|c: char| c.is_ascii_digit());
            let part = part.trim_start_matches("_$LT$").trim_start_matches("$RF$");
            Some(part.trim_start_matches("mut$u20$").trim_start_matches("dyn$u20$"))
        }
        (None, Some(path)) => path.match_indices('C').find_map(|(at, _)| root(&path[at + 1..])),
        (None, None) => None,
    };
    let identifier = |part: &str| {
        part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len())
    };
    match (found, name.strip_prefix("_ZN")) {
        // The older form has the length before the name.
        (Some(part), Some(path)) => {
            let digits = path.len() - path.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let length: usize = path[..digits].parse().unwrap_or(usize::MAX);
            let most = if part.len() + digits == path.len() { length } else { usize::MAX };
            &part[..identifier(part).min(most)]
        }
        (Some(part), None) => part,
        (None, _) => FOREIGN,
    }
}

/// The name of a crate's root in the newer form: `s`, a number in base 62 and `_`, then its length.
fn root(path: &str) -> Option<&str> {
    let path = match path.strip_prefix('s') {
        Some(rest) => rest.split_once('_')?.1,
        None => path,
    };
    let digits = path.find(|c: char| !c.is_ascii_digit())?;
    let length = path[..digits].parse().ok()?;
    path[digits..].trim_start_matches('_').get(..length)
}

fn number(elf: &[u8], at: u64, bytes: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let field = elf.get(at..at + bytes)?;
    Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn text(elf: &[u8], at: u64) -> Option<&str> {
    let rest = elf.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::crate_of;

    #[test]
    fn the_crate_is_found_in_both_forms_of_a_name() {
        let table = [
            ("_ZN14garm_bootstrap4boot4Boot5story17h0123456789abcdefE", "garm_bootstrap"),
            ("_ZN61_$LT$hyper..Foo$u20$as$u20$core..Bar$GT$4poll17h01E", "hyper"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core"),
            ("_RNvMs_NtCs3Nx_14garm_bootstrap4bootNtB4_4Boot5story", "garm_bootstrap"),
            ("_RNvXNtC5tokio4timeNtB2_5Sleep4poll", "tokio"),
            ("ring_core_0_17_14__chacha20", "(C and assembler)"),
        ];
        for (name, expected) in table {
            assert_eq!(crate_of(name), expected, "{name}");
        }
    }
}
