use proptest::prelude::*;

use super::*;

fn file(path: &[u8]) -> Claim<'_> {
    Claim { path, kind: EntryType::Regular, mode: 0o644, size: 1, target: None }
}

fn folder(path: &[u8]) -> Claim<'_> {
    Claim { path, kind: EntryType::Directory, mode: 0o755, size: 0, target: None }
}

fn link<'a>(path: &'a [u8], target: &'a [u8]) -> Claim<'a> {
    Claim { path, kind: EntryType::Symlink, mode: 0o777, size: 0, target: Some(target) }
}

/// The rule that the last of `claims` breaks; those before it must be admitted.
fn broken(claims: &[Claim<'_>]) -> Option<Rule> {
    let mut policy = Policy::new(Limits::default());
    let (last, before) = claims.split_last().unwrap();
    for claim in before {
        policy.admit(claim).unwrap();
    }
    policy.admit(last).err().map(|refusal| refusal.rule)
}

#[test]
fn a_runner_archives_entries_are_admitted() {
    let mut policy = Policy::new(Limits::default());
    assert_eq!(policy.admit(&folder(b"./")).unwrap(), Admitted::Nothing);
    assert_eq!(policy.admit(&folder(b"./bin/")).unwrap(), Admitted::Folder("bin".into()));
    assert_eq!(policy.admit(&folder(b"bin")).unwrap(), Admitted::Folder("bin".into()));
    assert_eq!(
        policy.admit(&file(b"./bin/Runner.Listener")).unwrap(),
        Admitted::File("bin/Runner.Listener".into())
    );
    let (npm, target) = (b"externals/node20/bin/npm", b"../lib/node_modules/npm/bin/npm-cli.js");
    assert_eq!(
        policy.admit(&link(npm, target)).unwrap(),
        Admitted::Link {
            path: "externals/node20/bin/npm".into(),
            target: "../lib/node_modules/npm/bin/npm-cli.js".into()
        }
    );
    // Links may come before what they lead to, lead nowhere, or lead to the root itself.
    assert_eq!(broken(&[link(b"a/l", b"..")]), None);
    assert_eq!(broken(&[link(b"a/l", b"nowhere/yet")]), None);
    assert_eq!(broken(&[file(b"bin/..hidden...")]), None);
}

#[test]
fn hostile_entries_are_refused_by_the_rule_that_they_break() {
    let of_kind = |kind| Claim { kind, size: 0, ..file(b"x") };
    let long = vec![b'a'; 5000];
    let long_part = [b"d/".as_slice(), &[b'a'; 256]].concat();
    let deep = b"a/".repeat(200);
    let table: Vec<(Vec<Claim<'_>>, Rule)> = vec![
        (vec![file(b"/etc/x")], Rule::Absolute),
        (vec![file(b"../../etc/x")], Rule::Climbs),
        (vec![file(b"a/../../x")], Rule::Climbs),
        (vec![folder(b"a/..")], Rule::Climbs),
        (vec![file(b"")], Rule::NoPath),
        (vec![file(b"./")], Rule::NoPath),
        (vec![file(b"a/")], Rule::NoPath),
        (vec![file(b"a\0b")], Rule::Nul),
        (vec![file(&long)], Rule::TooLong),
        (vec![file(&long_part)], Rule::TooLong),
        (vec![folder(&deep)], Rule::TooDeep),
        (vec![link(b"a", b"b"), file(b"a/passwd")], Rule::ThroughLink),
        (vec![link(b"a", b"b"), file(b"./a/deeper/passwd")], Rule::ThroughLink),
        (vec![file(b"a"), file(b"a/b")], Rule::ThroughFile),
        (vec![file(b"a"), file(b"./a")], Rule::Twice),
        (vec![file(b"a/b"), link(b"a", b"c")], Rule::Twice),
        (vec![folder(b"a"), file(b"a")], Rule::Twice),
        (vec![link(b"a", b"b"), folder(b"a")], Rule::Twice),
        (vec![of_kind(EntryType::Link)], Rule::HardLink),
        (vec![of_kind(EntryType::Char)], Rule::Special),
        (vec![of_kind(EntryType::Block)], Rule::Special),
        (vec![of_kind(EntryType::Fifo)], Rule::Special),
        (vec![of_kind(EntryType::GNUSparse)], Rule::Sparse),
        (vec![of_kind(EntryType::Continuous)], Rule::Unknown('7')),
        (vec![of_kind(EntryType::new(b'V'))], Rule::Unknown('V')),
        (vec![Claim { mode: 0o4755, ..file(b"x") }], Rule::SetId(0o4755)),
        (vec![Claim { mode: 0o2755, ..folder(b"x") }], Rule::SetId(0o2755)),
        (vec![link(b"x", b"")], Rule::NoTarget),
        (vec![link(b"x", b"/etc")], Rule::LinkAbsolute),
        (vec![link(b"x", b"..")], Rule::LinkOut),
        (vec![link(b"a/x", b"../../etc")], Rule::LinkOut),
        // `d/l` is the root, so `d/l/..` is outside, though its text looks harmless.
        (vec![link(b"d/l", b".."), link(b"x", b"d/l/../etc")], Rule::LinkWinding),
        (vec![link(b"x", b"a\0b")], Rule::Nul),
        (vec![Claim { size: 1, ..folder(b"x") }], Rule::Contents),
        (vec![Claim { size: 1, ..link(b"x", b"y") }], Rule::Contents),
        (vec![Claim { size: u64::MAX, ..file(b"x") }], Rule::TooLarge(8 << 30)),
    ];
    for (claims, rule) in table {
        assert_eq!(broken(&claims), Some(rule), "{claims:?}");
    }
}

#[test]
fn entries_and_the_folders_that_they_imply_are_counted() {
    let limits = Limits { entries: 3, bytes: 100 };
    let mut policy = Policy::new(limits);
    assert_eq!(policy.admit(&file(b"a/b/c/d")).unwrap_err().rule, Rule::TooMany(3));
    let mut policy = Policy::new(limits);
    for _ in 0..3 {
        policy.admit(&folder(b"a")).unwrap();
    }
    assert_eq!(policy.admit(&folder(b"a")).unwrap_err().rule, Rule::TooMany(3));
}

#[test]
fn bytes_are_counted_as_declared_and_as_they_come() {
    let limits = Limits { entries: 10, bytes: 100 };
    let mut policy = Policy::new(limits);
    policy.admit(&Claim { size: 60, ..file(b"a") }).unwrap();
    let error = policy.admit(&Claim { size: 60, ..file(b"b") }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "accept the archive's entry \"b\": with it the archive unpacks to more than 100 bytes"
    );
    let mut policy = Policy::new(limits);
    policy.count(Path::new("a"), 100).unwrap();
    assert_eq!(policy.count(Path::new("a"), 1).unwrap_err().rule, Rule::TooLarge(100));
}

#[test]
fn extended_headers_in_which_readers_disagree_are_refused() {
    let judge = |keys: &[Option<&'static [u8]>], global| {
        Policy::admit_extensions(b"x", keys.iter().copied(), global).err().map(|r| r.rule)
    };
    assert_eq!(judge(&[Some(b"path"), Some(b"size"), Some(b"mtime"), Some(b"mtime")], false), None);
    assert_eq!(judge(&[Some(b"comment")], true), None);
    assert_eq!(judge(&[Some(b"size"), Some(b"size")], false), Some(Rule::Extension));
    assert_eq!(judge(&[Some(b"path")], true), Some(Rule::Extension));
    assert_eq!(judge(&[None], false), Some(Rule::Extension));
    assert_eq!(judge(&[Some(b"GNU.sparse.major")], false), Some(Rule::Sparse));
}

proptest! {
    #[test]
    fn whatever_is_admitted_stays_inside(
        path in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), any::<u8>()], 0..20),
        target in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'a')], 0..20),
        kind in prop_oneof![Just(b'0'), Just(b'2'), Just(b'5'), any::<u8>()],
    ) {
        let claim = Claim {
            path: &path, kind: EntryType::new(kind), mode: 0o755, size: 0, target: Some(&target),
        };
        let inside = |path: &Path| {
            let mut depth = 0i32;
            path.components().all(|part| match part {
                std::path::Component::Normal(_) => { depth += 1; true }
                std::path::Component::CurDir => true,
                std::path::Component::ParentDir => { depth -= 1; depth >= 0 }
                _ => false,
            })
        };
        match Policy::new(Limits::default()).admit(&claim) {
            Ok(Admitted::Folder(path) | Admitted::File(path)) => {
                prop_assert!(path.components().all(|p| matches!(p, std::path::Component::Normal(_))));
            }
            Ok(Admitted::Link { path, target }) => {
                prop_assert!(inside(&path.parent().unwrap().join(target)));
            }
            Ok(Admitted::Nothing) | Err(_) => {}
        }
    }
}
