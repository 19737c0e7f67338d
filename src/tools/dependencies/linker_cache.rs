//! `/etc/ld.so.cache`, as glibc 2.1 and later write it (`dl-cache.h`): after the magic
//! `glibc-ld.so.cache1.1` the count of entries, then from byte 48 on entries of 24 bytes (flags,
//! offset of the name, offset of the path, …); offsets are from the magic. Older systems put the old
//! format before it (`ld.so-1.7.0`), so the magic is searched for.
//!
//! Invariant: any bytes give a list, if need be an empty one.

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// The library names of the cache with their paths.
pub fn parse(bytes: &[u8]) -> Vec<(String, String)> {
    let Some(start) = bytes.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let cache = &bytes[start..];
    let Some(count) = number(cache, MAGIC.len()) else { return Vec::new() };
    let entries = cache.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY).take(count);
    entries
        .filter_map(|entry| {
            Some((string(cache, number(entry, 4)?)?, string(cache, number(entry, 8)?)?))
        })
        .collect()
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    usize::try_from(u32::from_ne_bytes(four.try_into().ok()?)).ok()
}

fn string(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    // PATH_MAX: more is no path, and a damaged cache must not cost much.
    let text = rest.get(..rest.len().min(4096))?.split(|byte| *byte == 0).next()?;
    (text.len() < rest.len()).then(|| String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cache with these names and paths.
    pub(in super::super) fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(u32::try_from(entries.len()).unwrap().to_ne_bytes());
        bytes.resize(HEADER, 0);
        let mut strings = Vec::new();
        let begin = HEADER + ENTRY * entries.len();
        for (name, path) in entries {
            bytes.extend(0x0303u32.to_ne_bytes());
            for text in [name, path] {
                let offset = u32::try_from(begin + strings.len()).unwrap();
                bytes.extend(offset.to_ne_bytes());
                strings.extend(text.bytes().chain([0]));
            }
            bytes.extend([0; 12]);
        }
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn names_and_paths_are_read_behind_an_old_cache_too() {
        let new = cache(&[("libz.so.1", "/lib/libz.so.1"), ("libc.so.6", "/lib/libc.so.6")]);
        let expected = parse(&new);
        assert_eq!(expected[1], ("libc.so.6".to_owned(), "/lib/libc.so.6".to_owned()));
        assert_eq!(parse(&[b"ld.so-1.7.0\0padding".to_vec(), new].concat()), expected);
    }

    #[test]
    fn the_cache_of_this_machine_knows_its_c_library() {
        let Ok(bytes) = std::fs::read("/etc/ld.so.cache") else {
            assert!(cfg!(target_env = "musl") || !std::path::Path::new("/sbin/ldconfig").exists());
            return;
        };
        assert!(parse(&bytes).iter().any(|(name, _)| name == "libc.so.6"));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_list(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let _ = parse(&[MAGIC, &bytes].concat());
        }

        #[test]
        fn a_damaged_cache_gives_a_list(at in 0usize..120, byte: u8) {
            let mut bytes = cache(&[("libz.so.1", "/lib/libz.so.1"), ("a", "b")]);
            bytes.truncate(bytes.len() - at % 7);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = parse(&bytes);
        }
    }
}
