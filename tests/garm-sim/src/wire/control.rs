//! The cell that a connection's socket and its handlers share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::{Buf, Bytes};

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A TCP reset.
    Reset,
    /// A FIN, and on TLS no `close_notify` before it.
    Close,
}

/// What the socket may do with the next bytes of a reply.
#[derive(Debug)]
pub(crate) enum Step {
    Pass(usize),
    Raw(Bytes),
    End(End),
}

/// One connection, as handlers see it.
#[derive(Debug)]
pub(crate) struct Control {
    id: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    plan: Plan,
    killed: bool,
    reader: Option<Waker>,
}

#[derive(Debug, Default)]
enum Plan {
    #[default]
    Pass,
    /// Let the head and so many bytes of the body through.
    Cut {
        matched: usize,
        left: u64,
        end: End,
    },
    Now(End),
    Raw {
        bytes: Bytes,
        end: End,
    },
}

const HEAD_END: &[u8] = b"\r\n\r\n";

impl Control {
    pub(crate) fn new(id: u64) -> Self {
        Self { id, state: Mutex::default() }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the plan of an earlier reply on this connection.
    pub(crate) fn clear(&self) {
        self.state().plan = Plan::Pass;
    }

    /// Ends the connection instead of the next reply.
    pub(crate) fn end_now(&self, end: End) {
        self.state().plan = Plan::Now(end);
    }

    /// Ends the connection after the reply's head and `bytes` of its body.
    pub(crate) fn end_after_body(&self, bytes: u64, end: End) {
        self.state().plan = Plan::Cut { matched: 0, left: bytes, end };
    }

    /// Writes `bytes` instead of the next reply, then ends the connection.
    pub(crate) fn raw(&self, bytes: Bytes, end: End) {
        self.state().plan = Plan::Raw { bytes, end };
    }

    /// Ends the connection whatever it is doing.
    pub(crate) fn kill(&self) {
        let mut state = self.state();
        state.killed = true;
        state.plan = Plan::Now(End::Reset);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// True once killed; otherwise remembers whom to wake when that happens.
    pub(crate) fn killed_or_wake(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        if !state.killed {
            state.reader = Some(waker.clone());
        }
        state.killed
    }

    /// What may happen to `buf`, the next bytes that the server wants to send.
    pub(crate) fn step(&self, buf: &[u8]) -> Step {
        match &self.state().plan {
            Plan::Pass => Step::Pass(buf.len()),
            Plan::Now(end) => Step::End(*end),
            Plan::Raw { bytes, end } if bytes.is_empty() => Step::End(*end),
            Plan::Raw { bytes, .. } => Step::Raw(bytes.clone()),
            Plan::Cut { matched, left, end } => {
                let head = head_bytes(*matched, buf);
                let body = usize::try_from(*left).unwrap_or(usize::MAX);
                match head.saturating_add(body).min(buf.len()) {
                    0 if !buf.is_empty() => Step::End(*end),
                    allowed => Step::Pass(allowed),
                }
            }
        }
    }

    /// The socket took these bytes of the reply.
    pub(crate) fn passed(&self, sent: &[u8]) {
        if let Plan::Cut { matched, left, .. } = &mut self.state().plan {
            let head = head_bytes(*matched, sent).min(sent.len());
            for byte in &sent[..head] {
                *matched = advance(*matched, *byte);
            }
            *left = left.saturating_sub((sent.len() - head) as u64);
        }
    }

    /// The socket took so many of the raw bytes.
    pub(crate) fn raw_passed(&self, count: usize) {
        if let Plan::Raw { bytes, .. } = &mut self.state().plan {
            bytes.advance(count.min(bytes.len()));
        }
    }
}

/// How many bytes of `buf` still belong to the head, when `matched` bytes of its end were seen.
fn head_bytes(mut matched: usize, buf: &[u8]) -> usize {
    for (index, byte) in buf.iter().enumerate() {
        if matched == HEAD_END.len() {
            return index;
        }
        matched = advance(matched, *byte);
    }
    buf.len()
}

fn advance(matched: usize, byte: u8) -> usize {
    match HEAD_END.get(matched) {
        Some(wanted) if *wanted == byte => matched + 1,
        _ => usize::from(byte == b'\r'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(control: &Control, mut bytes: &[u8], chunk: usize) -> usize {
        let mut sent = 0;
        while !bytes.is_empty() {
            let Step::Pass(count) = control.step(&bytes[..chunk.min(bytes.len())]) else {
                break;
            };
            control.passed(&bytes[..count]);
            sent += count;
            bytes = &bytes[count..];
        }
        sent
    }

    #[test]
    fn a_cut_counts_body_bytes_only_however_the_reply_is_split() {
        let reply = b"HTTP/1.1 200 OK\r\na: b\r\n\r\n0123456789";
        for chunk in 1..=reply.len() {
            let control = Control::new(1);
            control.end_after_body(4, End::Reset);
            assert_eq!(pass(&control, reply, chunk), reply.len() - 6, "chunks of {chunk}");
        }
    }

    #[test]
    fn a_cleared_connection_passes_everything() {
        let control = Control::new(1);
        control.end_now(End::Close);
        control.clear();
        assert!(matches!(control.step(b"abc"), Step::Pass(3)));
    }
}
