//! What an ELF file says of itself: machine, dynamic loader, needed libraries.
//!
//! Owns: the reading of just those three, from any bytes whatever. Must not: start a program (`ldd`
//! does) or search for a library. Invariants: no offset of a file is trusted, no count of a file
//! makes us read more than [`MAX_TABLE`] at once, and a file that is no ELF file is no error.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The longest table or string that is read; the real ones are a few kilobytes.
const MAX_TABLE: u64 = 1 << 20;
const MAX_NEEDED: usize = 512;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// A processor, named as forges and people name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Machine {
    X64,
    Arm64,
    Arm,
    X86,
    /// Any other `e_machine` number.
    Other(u16),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    pub machine: Machine,
    /// The dynamic loader; `None` in a static program and in most libraries.
    pub interpreter: Option<PathBuf>,
    /// `DT_NEEDED`, in order.
    pub needed: Vec<String>,
}

impl Machine {
    fn of(number: u16) -> Self {
        match number {
            62 => Self::X64,
            183 => Self::Arm64,
            40 => Self::Arm,
            3 => Self::X86,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X64 => f.write_str("x64"),
            Self::Arm64 => f.write_str("arm64"),
            Self::Arm => f.write_str("arm"),
            Self::X86 => f.write_str("x86"),
            Self::Other(number) => write!(f, "machine-{number}"),
        }
    }
}

/// The processor that this program was built for, which is the one that it runs on.
pub fn machine_of_host() -> Machine {
    match std::env::consts::ARCH {
        "x86_64" => Machine::X64,
        "aarch64" => Machine::Arm64,
        "arm" => Machine::Arm,
        "x86" => Machine::X86,
        _ => Machine::Other(0),
    }
}

/// What the file says; `None` when it is not an ELF file (a script, a text), an error of kind
/// `InvalidData` when it begins like one and breaks off or contradicts itself.
pub fn read(path: &Path) -> io::Result<Option<Elf>> {
    let file = File::open(path)?;
    parse(&|buffer: &mut [u8], offset| file.read_exact_at(buffer, offset))
}

/// As [`read`], of a file that is in memory.
pub fn read_bytes(bytes: &[u8]) -> io::Result<Option<Elf>> {
    parse(&|buffer: &mut [u8], offset| {
        let from = usize::try_from(offset).ok().and_then(|at| bytes.get(at..));
        match from.and_then(|rest| rest.get(..buffer.len())) {
            Some(part) => {
                buffer.copy_from_slice(part);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    })
}

impl Elf {
    /// The dynamic loader, if the file names one that is not there: the kernel then says "no such
    /// file" of a program that plainly exists.
    pub fn missing_loader(&self) -> Option<&Path> {
        self.interpreter.as_deref().filter(|loader| !loader.exists())
    }
}

type ReadAt<'a> = &'a dyn Fn(&mut [u8], u64) -> io::Result<()>;

fn parse(at: ReadAt<'_>) -> io::Result<Option<Elf>> {
    let mut ident = [0; 20];
    match at(&mut ident, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    if !ident.starts_with(b"\x7fELF") {
        return Ok(None);
    }
    let (class, order) = (ident[4], ident[5]);
    if order == 2 {
        let machine = Machine::of(u16::from_be_bytes([ident[18], ident[19]]));
        return Ok(Some(Elf { machine, interpreter: None, needed: Vec::new() }));
    }
    let reader = Reader { at, wide: class == 2 };
    let machine = Machine::of(u16::from_le_bytes([ident[18], ident[19]]));
    let segments = reader.segments()?;
    let interpreter = segments.iter().find(|s| s.kind == PT_INTERP);
    let interpreter = interpreter
        .map(|s| reader.string(s.offset, s.file_size.min(4096)))
        .transpose()?
        .map(PathBuf::from);
    let needed = reader.needed(&segments)?;
    Ok(Some(Elf { machine, interpreter, needed }))
}

struct Reader<'a> {
    at: ReadAt<'a>,
    /// 64 bit.
    wide: bool,
}

struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    file_size: u64,
}

impl Reader<'_> {
    fn segments(&self) -> io::Result<Vec<Segment>> {
        let header = self.bytes(0, if self.wide { 64 } else { 52 })?;
        let word = |at: usize, size: usize| number(&header, at, size);
        let (start, size, count) = if self.wide {
            (word(32, 8), word(54, 2), word(56, 2))
        } else {
            (word(28, 4), word(42, 2), word(44, 2))
        };
        let least = if self.wide { 56 } else { 32 };
        if count == 0 {
            return Ok(Vec::new());
        }
        if size < least {
            return Err(broken());
        }
        let table = self.bytes(start, size * count)?;
        let size = usize::try_from(size).map_err(|_| broken())?;
        Ok(table
            .chunks_exact(size)
            .map(|entry| {
                let n = |at, size| number(entry, at, size);
                let kind = n(0, 4);
                if self.wide {
                    Segment { kind, offset: n(8, 8), address: n(16, 8), file_size: n(32, 8) }
                } else {
                    Segment { kind, offset: n(4, 4), address: n(8, 4), file_size: n(16, 4) }
                }
            })
            .collect())
    }

    fn needed(&self, segments: &[Segment]) -> io::Result<Vec<String>> {
        let Some(dynamic) = segments.iter().find(|s| s.kind == PT_DYNAMIC) else {
            return Ok(Vec::new());
        };
        let width = if self.wide { 8 } else { 4 };
        let table = self.bytes(dynamic.offset, dynamic.file_size)?;
        let entries: Vec<(u64, u64)> = table
            .chunks_exact(2 * width)
            .map(|entry| (number(entry, 0, width), number(entry, width, width)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let names: Vec<u64> =
            entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).map(|(_, v)| *v).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB).ok_or_else(broken)?.1;
        let strings = offset_of(segments, strings).ok_or_else(broken)?;
        names
            .iter()
            .take(MAX_NEEDED)
            .map(|name| self.string(strings.checked_add(*name).ok_or_else(broken)?, 256))
            .collect()
    }

    fn bytes(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        if len > MAX_TABLE || i64::try_from(offset).is_err() {
            return Err(broken());
        }
        let mut buffer = vec![0; usize::try_from(len).map_err(|_| broken())?];
        (self.at)(&mut buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => broken(),
            _ => error,
        })?;
        Ok(buffer)
    }

    /// The NUL-terminated string at `offset`, of at most `most` bytes.
    fn string(&self, offset: u64, most: u64) -> io::Result<String> {
        let mut out = Vec::new();
        // In pieces, for the string may end just before the file does.
        for at in offset..offset.saturating_add(most) {
            match self.bytes(at, 1)?[0] {
                0 => break,
                byte => out.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}

/// Where in the file the memory address `address` comes from.
fn offset_of(segments: &[Segment], address: u64) -> Option<u64> {
    segments.iter().filter(|s| s.kind == PT_LOAD).find_map(|s| {
        let inside = address.checked_sub(s.address).filter(|o| *o < s.file_size)?;
        s.offset.checked_add(inside)
    })
}

/// The little-endian number of `size` bytes at `at`; the callers' tables are long enough.
fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an ELF file that is cut off or damaged")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn our_own_test_program_names_its_machine_loader_and_libraries() {
        let elf = read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert_eq!(elf.machine, machine_of_host());
        if let Some(loader) = &elf.interpreter {
            assert!(loader.is_absolute() && elf.missing_loader().is_none(), "{loader:?}");
            assert!(elf.needed.iter().any(|n| n.starts_with("libc.")), "{:?}", elf.needed);
        }
    }

    #[test]
    fn a_script_is_no_elf_file_and_an_empty_file_neither() {
        assert_eq!(read_bytes(b"#!/bin/sh\necho this is long enough\n").unwrap(), None);
        assert_eq!(read_bytes(b"").unwrap(), None);
    }

    #[test]
    fn a_foreign_machine_is_named() {
        let mut header = vec![0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[18] = 183;
        assert_eq!(read_bytes(&header).unwrap().unwrap().machine.to_string(), "arm64");
    }

    #[test]
    fn a_file_cut_off_behind_its_header_is_damaged_and_not_a_script() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = read_bytes(&whole[..70]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            class in 0u8..4,
            order in 0u8..4,
            rest in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut bytes = b"\x7fELF".to_vec();
            bytes.extend([class, order]);
            bytes.extend(rest);
            let _ = read_bytes(&bytes);
        }

        #[test]
        fn a_damaged_program_is_read_without_a_panic(at in 0usize..1000, byte: u8) {
            let mut bytes = std::fs::read("/proc/self/exe").unwrap();
            bytes.truncate(1 << 16);
            bytes[at] = byte;
            let _ = read_bytes(&bytes);
        }
    }
}
