//! Anything that a runner prints: cut into lines, read for its meaning, made fit for a message.
#![no_main]

use garm_bootstrap::forge::Dialect;
use garm_bootstrap::supervise::output::Cutter;
use garm_bootstrap::text::{Tail, one_line, readable, shorten};
use libfuzzer_sys::fuzz_target;

// The first byte says where the bytes are cut into two chunks.
fuzz_target!(|data: &[u8]| {
    let Some((at, bytes)) = data.split_first() else { return };
    let (one, two) = bytes.split_at(usize::from(*at).min(bytes.len()));
    assert_eq!(lines(&[one, two]), lines(&[bytes]), "lines depend on how the bytes came");
    for line in lines(&[bytes]) {
        let text = String::from_utf8_lossy(&line);
        let _ = Dialect::GitHub.read_line(&text);
        let _ = Dialect::GitHub.read_line(&format!("2026-12-01 02:03:04Z: {text}"));
    }
    let mut tail = Tail::default();
    tail.push(one);
    tail.push(two);
    let text = tail.text();
    let _ = Dialect::GitHub.cause(&text);
    for text in [text, readable(bytes)] {
        assert!(text.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'), "{text:?}");
        assert!(!one_line(&text).contains('\n'));
        assert!(shorten(&text, 100).chars().count() <= text.chars().count().max(100));
    }
});

fn lines(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
    let (mut cutter, mut lines) = (Cutter::default(), Vec::new());
    for chunk in chunks {
        cutter.push(chunk, |line| lines.push(line.to_vec()));
    }
    cutter.finish(|line| lines.push(line.to_vec()));
    lines
}
