//! Archives that mean harm, or are noise.

use proptest::prelude::*;

use super::*;

#[test]
fn hostile_archives_are_refused_and_leave_the_outside_untouched() {
    let cases: Vec<(&str, Archive)> = vec![
        ("absolute", Archive::new().file("/tmp/evil", b"x")),
        ("climbs", Archive::new().file("../evil", b"x")),
        ("through", Archive::new().raw(b"l", b'2', 0o777, b"d", b"").file("l/evil", b"x")),
        ("out", Archive::new().raw(b"l", b'2', 0o777, b"..", b"").file("l/evil", b"x")),
        ("hard", Archive::new().raw(b"h", b'1', 0o644, b"/etc/shadow", b"")),
        ("device", Archive::new().raw(b"d", b'3', 0o644, b"", b"")),
        ("fifo", Archive::new().raw(b"p", b'6', 0o644, b"", b"")),
        ("setuid", Archive::new().raw(b"s", b'0', 0o4755, b"", b"x")),
        ("twice", Archive::new().file("a", b"1").file("a", b"2")),
        ("type", Archive::new().raw(b"v", b'V', 0o644, b"", b"")),
    ];
    for (name, archive) in cases {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("tree");
        fs::create_dir(&inner).unwrap();
        let error = unpack_bytes(&archive.gz(), &inner).unwrap_err();
        assert!(matches!(error, UnpackError::Refused(_)), "{name}: {error:?}");
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1, "{name}");
    }
}

#[test]
fn a_zip_bomb_goes_off_at_the_limit_wherever_it_lies() {
    let cancel = CancellationToken::new();
    let limits = Limits { bytes: 1 << 20, ..Limits::default() };
    let bomb = |archive: Vec<u8>| {
        let dir = tempfile::tempdir().unwrap();
        unpack(&archive[..], dir.path(), &Order { limits, ..order(&cancel) }).unwrap_err()
    };
    let zeros = vec![0; 4 << 20];
    let declared = bomb(Archive::new().file("a", &zeros).gz());
    assert!(declared.to_string().contains("unpacks to more than 1048576 bytes"), "{declared}");
    // In a long name, which tar keeps in memory.
    let name = bomb(Archive::new().raw(b"././@LongLink", b'L', 0o644, b"", &zeros).gz());
    assert!(name.to_string().contains("extended headers are larger"), "{name}");
    // Behind the end of the archive.
    let mut tar = Archive::new().file("a", b"x").0.into_inner().unwrap();
    tar.extend(&zeros);
    let behind = bomb(gzip(&tar));
    assert!(matches!(behind, UnpackError::Corrupt { .. }), "{behind:?}");
}

#[test]
fn too_many_entries_are_refused() {
    let mut archive = Archive::new();
    for n in 0..100 {
        archive = archive.file(&format!("f{n}"), b"");
    }
    let cancel = CancellationToken::new();
    let limits = Limits { entries: 50, ..Limits::default() };
    let dir = tempfile::tempdir().unwrap();
    let error = unpack(&archive.gz()[..], dir.path(), &Order { limits, ..order(&cancel) });
    assert!(error.unwrap_err().to_string().contains("more than 50 entries"));
}

#[test]
fn pax_size_tricks_are_refused_or_read_as_gnu_tar_reads_them() {
    let pax = |records: &str| {
        let mut archive = Archive::new();
        archive = archive.raw(b"PaxHeader", b'x', 0o644, b"", records.as_bytes());
        archive
    };
    // The header says 0 bytes, the extension 3: the extension counts.
    let mut archive = pax("10 size=3\n");
    let mut header = tar::Header::new_ustar();
    header.set_path("a").unwrap();
    header.set_mode(0o644);
    header.set_size(0);
    header.set_cksum();
    archive.0.append(&header, &b"abc"[..]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    unpack_bytes(&archive.file("b", b"2").gz(), dir.path()).unwrap();
    assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"abc");
    assert_eq!(fs::read(dir.path().join("b")).unwrap(), b"2");

    for records in ["10 size=1\n10 size=1\n", "99 size=3\n", "22 GNU.sparse.major=1\n"] {
        let error = error_of(&pax(records).file("a", b"x").gz());
        let refused = matches!(error, UnpackError::Refused(_));
        assert!(refused, "{records:?}: {error:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_in_a_gzip_stream_are_read_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let _ = unpack_bytes(&gzip(&bytes), dir.path());
    }

    #[test]
    fn a_damaged_header_is_read_without_a_panic_and_stays_inside(at in 0usize..1536, byte: u8) {
        let archive = Archive::new().file("a/b", b"x").raw(b"l", b'2', 0o777, b"a", b"");
        let mut tar = archive.0.into_inner().unwrap();
        tar[at] = byte;
        // With a checksum that fits, so that the damage gets through.
        for header in [0, 1024] {
            let sum: u32 = (0..512)
                .map(|n| if (148..156).contains(&n) { 32 } else { u32::from(tar[header + n]) })
                .sum();
            tar[header + 148..header + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("tree");
        fs::create_dir(&inner).unwrap();
        let _ = unpack_bytes(&gzip(&tar), &inner);
        prop_assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
    }
}
