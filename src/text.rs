//! Text that programs printed, made fit for a status message or a log line.
//!
//! Owns: what "readable" means (valid UTF-8, no terminal codes, no control characters, no secrets, a
//! length limit) and the [`Tail`] of a program's output. Must not: know who printed it.

use std::collections::VecDeque;

use crate::secret;

/// What a cut text shows where something was left out.
const CUT: &str = " […] ";

/// `bytes` as one readable text: invalid UTF-8 replaced, terminal codes and control characters
/// removed (line ends stay), secrets masked.
pub fn readable(bytes: &[u8]) -> String {
    let lossy = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(lossy.len());
    let mut chars = lossy.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => skip_escape(&mut chars),
            '\n' => out.push('\n'),
            '\t' => out.push(' '),
            // A progress bar redraws its line: what follows replaces what stood there.
            '\r' if chars.peek() != Some(&'\n') => {
                out.truncate(out.rfind('\n').map_or(0, |at| at + 1));
            }
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    secret::redact(out.trim()).into_owned()
}

/// Skips the rest of an escape sequence whose ESC was just read: CSI up to its final byte, OSC up to
/// BEL or ST, anything else one character (ECMA-48).
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => while chars.next().is_some_and(|c| !('\u{40}'..='\u{7e}').contains(&c)) {},
        Some(']' | 'P' | '^' | '_') => {
            while let Some(c) = chars.next() {
                if c == '\u{7}' || (c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()) {
                    break;
                }
            }
        }
        _ => {}
    }
}

/// Whether a program says that somebody refused its credentials, in the words of the runner.
pub fn is_refusal(output: &str) -> bool {
    let words = [
        "NotFound",
        "Not Found",
        "404",
        "Unauthorized",
        "401",
        "expired",
        "not yet valid",
        "NotYetValid",
    ];
    words.iter().any(|word| output.contains(word))
}

/// `text` cut to at most `limit` characters; what stays is its first line and its end, for that is
/// where programs say what they were doing and what went wrong.
pub fn shorten(text: &str, limit: usize) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let room = limit.saturating_sub(CUT.chars().count());
    let head: String =
        text.lines().next().unwrap_or_default().chars().take(room.div_ceil(2)).collect();
    let rest = room.saturating_sub(head.chars().count());
    let tail: String = text.chars().skip(length.saturating_sub(rest)).collect();
    format!("{head}{CUT}{tail}")
}

/// `text` on one line, for a log: line ends become `" | "`.
pub fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" | ")
}

/// The beginning and the last bytes of a program's output, in bounded memory however much it prints.
#[derive(Debug, Default)]
pub struct Tail {
    head: Vec<u8>,
    last: VecDeque<u8>,
    seen: usize,
}

impl Tail {
    const HEAD: usize = 512;
    const LAST: usize = 4096;

    pub fn push(&mut self, bytes: &[u8]) {
        self.seen += bytes.len();
        let to_head = bytes.len().min(Self::HEAD - self.head.len());
        let (head, rest) = bytes.split_at(to_head);
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(Self::LAST)..];
        let over = (self.last.len() + rest.len()).saturating_sub(Self::LAST);
        self.last.drain(..over);
        self.last.extend(rest);
    }

    pub fn is_empty(&self) -> bool {
        self.seen == 0
    }

    /// The kept output as [`readable`] text.
    pub fn text(&self) -> String {
        let last: Vec<u8> = self.last.iter().copied().collect();
        if self.seen == self.head.len() + last.len() {
            return readable(&[&self.head[..], &last].concat());
        }
        let (head, last) = (secret::before_cut(&self.head), secret::after_cut(&last));
        readable(&[head, "\n…\n".as_bytes(), last].concat())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn terminal_codes_and_control_bytes_are_removed() {
        let raw = b"NotFound from \"POST https://x\"\n\ta\\b \x1b[31mred\x1b[0m \x1b]0;title\x07end \xff\0";
        assert_eq!(
            readable(raw),
            "NotFound from \"POST https://x\"\n a\\b redend \u{fffd}".replace("redend", "red end")
        );
    }

    #[test]
    fn a_progress_bar_keeps_its_last_state() {
        assert_eq!(readable(b"10%\r50%\r100%\ndone\r\n"), "100%\ndone");
    }

    #[test]
    fn a_long_text_keeps_its_first_line_and_its_end() {
        let text = format!("what it did\n{}the reason", "noise\n".repeat(500));
        let short = shorten(&text, 60);
        assert!(short.starts_with("what it did […] ") && short.ends_with("the reason"), "{short}");
        assert!(short.chars().count() <= 60);
    }

    #[test]
    fn the_tail_of_a_flood_is_bounded_and_says_that_it_is_cut() {
        let mut tail = Tail::default();
        tail.push(b"first\n");
        for n in 0..100_000 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        let text = tail.text();
        assert!(text.starts_with("first") && text.ends_with("line 99999") && text.contains('…'));
        assert!(text.len() < 5000);
    }

    proptest! {
        #[test]
        fn any_bytes_end_up_as_readable_text(bytes: Vec<u8>) {
            let text = readable(&bytes);
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        }

        #[test]
        fn a_shortened_text_is_within_its_limit(text in ".{0,300}", limit in 10usize..200) {
            prop_assert!(shorten(&text, limit).chars().count() <= limit);
        }
    }
}
