//! Log lines on stderr.
//!
//! Owns: their three forms (text for people, priority-prefixed lines for the journal, JSON for
//! machines) and the last gate before them: every line passes redaction, whoever wrote it. The runner's
//! own output is not a log; it goes to stdout.

mod writer;

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Environment, LogFormat, LogSettings};
use writer::Stderr;

/// How long the last lines may take at the end.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Starts logging; a second call changes nothing.
pub fn init(settings: LogSettings, environment: &Environment) {
    let stream = environment.get("JOURNAL_STREAM");
    let builder = tracing_subscriber::fmt().with_max_level(settings.level).with_writer(Stderr);
    let started = match settings.format {
        LogFormat::Json => tracing::subscriber::set_global_default(
            builder.json().flatten_event(true).with_target(false).finish(),
        ),
        LogFormat::Journal => {
            tracing::subscriber::set_global_default(builder.event_format(Lines::Journal).finish())
        }
        LogFormat::Auto if stream.is_some_and(|stream| is_stderr(&stream)) => {
            tracing::subscriber::set_global_default(builder.event_format(Lines::Journal).finish())
        }
        LogFormat::Text | LogFormat::Auto => {
            let lines = Lines::Text { color: io::stderr().is_terminal() };
            tracing::subscriber::set_global_default(builder.event_format(lines).finish())
        }
    };
    // Only a test in the same process can have started it before.
    drop(started);
}

/// Waits until the last line is written, but not for a reader that stands still.
pub fn finish() {
    writer::finish(LAST_LINES);
}

/// Whether `JOURNAL_STREAM` (`device:inode`, systemd.exec(5)) names our stderr.
fn is_stderr(journal_stream: &str) -> bool {
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|stderr| journal_stream == format!("{}:{}", stderr.dev(), stderr.ino()))
}

/// One event, one line.
enum Lines {
    Text { color: bool },
    Journal,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        match self {
            Self::Journal => write!(writer, "<{}>", priority(level))?,
            Self::Text { color } => {
                let now = humantime::format_rfc3339_seconds(SystemTime::now());
                let (on, off) = if *color { (color_of(level), "\x1b[0m") } else { ("", "") };
                write!(writer, "{now} {on}{level:>5}{off} ")?;
            }
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// syslog(3)'s number for a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

fn color_of(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        _ => "\x1b[2m",
    }
}
