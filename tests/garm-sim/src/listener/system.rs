//! The few system calls that std has no name for.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

pub const SIGINT: i32 = 2;
pub const SIGTERM: i32 = 15;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
const POLLIN: i16 = 1;

#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn kill(pid: i32, number: i32) -> i32;
    fn getpid() -> i32;
    fn getpgrp() -> i32;
    fn getuid() -> u32;
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn pipe(ends: *mut i32) -> i32;
    fn poll(fds: *mut PollFd, count: std::ffi::c_ulong, timeout: i32) -> i32;
    fn read(fd: i32, buffer: *mut u8, count: usize) -> isize;
    fn write(fd: i32, buffer: *const u8, count: usize) -> isize;
    fn pause() -> i32;
    fn _exit(code: i32) -> !;
}

static PIPE_WRITE: AtomicI32 = AtomicI32::new(-1);
static PIPE_READ: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(number: i32) {
    let byte = number as u8;
    // SAFETY: write(2) may be called in a handler; the buffer is one byte of this frame.
    unsafe { write(PIPE_WRITE.load(Ordering::Relaxed), &raw const byte, 1) };
}

/// Catches SIGINT and SIGTERM, but leaves one that was ignored at the start ignored, as .NET does.
pub fn catch_signals(ignore: &[i32]) {
    let mut ends = [-1; 2];
    // SAFETY: plain calls with valid pointers; the handler only writes to the pipe.
    unsafe {
        if pipe(ends.as_mut_ptr()) != 0 {
            return;
        }
        PIPE_READ.store(ends[0], Ordering::Relaxed);
        PIPE_WRITE.store(ends[1], Ordering::Relaxed);
        for number in [SIGINT, SIGTERM] {
            if ignore.contains(&number) {
                signal(number, SIG_IGN);
                continue;
            }
            let handler: extern "C" fn(i32) = on_signal;
            let before = signal(number, handler as usize);
            if before == SIG_IGN {
                signal(number, SIG_IGN);
            }
        }
    }
}

/// Waits for a signal until then, or for ever.
pub fn wait(until: Option<Instant>) -> Option<i32> {
    loop {
        let left = until.map(|then| then.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(-1, |left| {
            // Rounded up: waking a moment early would spin.
            left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32
        });
        let mut fd = PollFd {
            fd: PIPE_READ.load(Ordering::Relaxed),
            events: POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd, one byte to read into.
        unsafe {
            if poll(&raw mut fd, 1, timeout) > 0 {
                let mut byte = 0u8;
                if read(fd.fd, &raw mut byte, 1) == 1 {
                    return Some(i32::from(byte));
                }
            }
        }
        if until.is_some_and(|then| then <= Instant::now()) {
            return None;
        }
    }
}

/// Waits that long; a signal ends it early.
pub fn sleep(time: Duration) -> Option<i32> {
    wait(Some(Instant::now() + time))
}

pub fn pid() -> i32 {
    // SAFETY: no arguments.
    unsafe { getpid() }
}

pub fn group() -> i32 {
    // SAFETY: no arguments.
    unsafe { getpgrp() }
}

pub fn uid() -> u32 {
    // SAFETY: no arguments.
    unsafe { getuid() }
}

pub fn kill_self(number: i32) {
    // SAFETY: plain numbers.
    unsafe {
        signal(number, SIG_DFL);
        kill(getpid(), number);
        pause();
    }
}

/// Runs `work` in a child of this process that then exits.
pub fn spawn(work: impl FnOnce()) -> i32 {
    // SAFETY: this program has one thread, so the child may do anything.
    unsafe {
        let child = fork();
        if child == 0 {
            signal(SIGINT, SIG_DFL);
            signal(SIGTERM, SIG_DFL);
            work();
            _exit(0);
        }
        child
    }
}

/// In a child: never ends by SIGINT or SIGTERM.
pub fn ignore_signals() {
    // SAFETY: plain numbers.
    unsafe {
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
    }
}

pub fn reap(child: i32) {
    let mut status = 0;
    // SAFETY: a valid pointer.
    unsafe { waitpid(child, &raw mut status, 0) };
}
