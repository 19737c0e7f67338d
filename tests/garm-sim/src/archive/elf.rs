//! ELF files written by hand: a shared object that needs libraries, an executable that needs a
//! loader. Enough for whoever reads headers; nothing in them can run.

/// The machine that this program was built for, as ELF numbers it.
pub const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Another machine than [`MACHINE`].
pub const FOREIGN_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 62 } else { 183 };

const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

/// A little-endian ELF64 shared object whose dynamic section needs those libraries.
pub fn shared_object(needs: &[String]) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut entries: Vec<(u64, u64)> = Vec::new();
    for name in needs {
        entries.push((DT_NEEDED, strings.len() as u64));
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
    }
    let start = HEADER + 2 * PROGRAM_HEADER;
    let dynamic_size = (entries.len() as u64 + 3) * 16;
    let strings_at = start + dynamic_size;
    entries.push((DT_STRTAB, strings_at));
    entries.push((DT_STRSZ, strings.len() as u64));
    entries.push((0, 0));
    let total = strings_at + strings.len() as u64;

    let mut file = header(3, 2);
    program_header(&mut file, PT_LOAD, 0, total);
    program_header(&mut file, PT_DYNAMIC, start, dynamic_size);
    for (tag, value) in entries {
        file.extend_from_slice(&tag.to_le_bytes());
        file.extend_from_slice(&value.to_le_bytes());
    }
    file.extend_from_slice(&strings);
    file
}

/// An executable that asks for that dynamic loader.
pub fn executable_with_loader(loader: &str) -> Vec<u8> {
    let start = HEADER + 2 * PROGRAM_HEADER;
    let size = loader.len() as u64 + 1;
    let mut file = header(3, 2);
    program_header(&mut file, PT_INTERP, start, size);
    program_header(&mut file, PT_LOAD, 0, start + size);
    file.extend_from_slice(loader.as_bytes());
    file.push(0);
    file
}

/// The same file for another machine.
pub fn with_machine(mut elf: Vec<u8>, machine: u16) -> Vec<u8> {
    if let Some(field) = elf.get_mut(18..20) {
        field.copy_from_slice(&machine.to_le_bytes());
    }
    elf
}

fn header(kind: u16, program_headers: u16) -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    file.resize(16, 0);
    file.extend_from_slice(&kind.to_le_bytes());
    file.extend_from_slice(&MACHINE.to_le_bytes());
    file.extend_from_slice(&1u32.to_le_bytes());
    file.extend_from_slice(&HEADER.to_le_bytes()); // entry
    file.extend_from_slice(&HEADER.to_le_bytes()); // program headers
    file.extend_from_slice(&0u64.to_le_bytes()); // section headers
    file.extend_from_slice(&0u32.to_le_bytes()); // flags
    for half in [64u16, 56, program_headers, 64, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file
}

fn program_header(file: &mut Vec<u8>, kind: u32, offset: u64, size: u64) {
    file.extend_from_slice(&kind.to_le_bytes());
    file.extend_from_slice(&4u32.to_le_bytes()); // readable
    for word in [offset, offset, offset, size, size, 8] {
        file.extend_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names_are_where_the_headers_say() {
        let elf = shared_object(&["libicuuc.so.99".into(), "libmissing.so.1".into()]);
        assert_eq!(&elf[..4], b"\x7fELF");
        let word = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap());
        let load_size = word(64 + 32);
        assert_eq!(load_size, elf.len() as u64);
        let dynamic = usize::try_from(word(64 + 56 + 8)).unwrap();
        assert_eq!(word(dynamic), DT_NEEDED);
        let strings = usize::try_from(word(dynamic + 2 * 16 + 8)).unwrap();
        let first = strings + usize::try_from(word(dynamic + 8)).unwrap();
        assert!(elf[first..].starts_with(b"libicuuc.so.99\0libmissing.so.1\0"));
    }

    #[test]
    fn the_machine_can_be_another() {
        let elf = with_machine(shared_object(&[]), FOREIGN_MACHINE);
        assert_eq!(u16::from_le_bytes([elf[18], elf[19]]), FOREIGN_MACHINE);
    }
}
