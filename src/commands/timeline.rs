//! `timeline`: where the time of the last boot went.

use std::fmt::Write as _;
use std::path::PathBuf;

use tracing::error;

use super::{begin, print};
use crate::config::{self, Layers};
use crate::error::Error;
use crate::exit::Exit;
use crate::host::users::Account;
use crate::state;
use crate::timeline::Record;

/// Prints the timeline as a table; `as_it_is`: the file itself.
pub fn timeline(mut layers: Layers, as_it_is: bool) -> Exit {
    match read(&mut layers) {
        Ok((text, _)) if as_it_is => print(&text),
        Ok((_, record)) => print(&table(&record)),
        Err(error) => {
            error!("failed to {error}");
            return error.exit();
        }
    }
    Exit::Done
}

fn read(layers: &mut Layers) -> Result<(String, Record), Error> {
    begin(layers)?;
    let folders = config::dirs(layers, &Account::current()).state;
    let path = state::existing(&folders, state::TIMELINE).unwrap_or_else(|| missing(&folders));
    let no_timeline = |why: String| Error::NoTimeline { path: path.clone(), why };
    let text = std::fs::read_to_string(&path).map_err(|error| no_timeline(error.to_string()))?;
    let record = serde_json::from_str(&text).map_err(|error| no_timeline(error.to_string()))?;
    Ok((text, record))
}

fn missing(folders: &[PathBuf]) -> PathBuf {
    folders.first().cloned().unwrap_or_default().join(state::TIMELINE)
}

fn table(record: &Record) -> String {
    let mut out = format!("boot of {}\n\n", record.began_at);
    let _ = writeln!(out, "{:<14}{:>10}{:>10}{:>14}", "phase", "from/s", "took/s", "bytes");
    for span in &record.phases {
        let took = span.seconds.map_or_else(|| "-".to_owned(), |took| format!("{took:.3}"));
        let bytes = span.bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        let line = format!("{:<14}{:>10.3}{took:>10}{bytes:>14}", span.phase.name(), span.start);
        let _ = writeln!(out, "{}", line.trim_end());
        for step in &span.steps {
            let name = format!("  {}", step.step);
            let awaited = span.awaited().is_some_and(|awaited| std::ptr::eq(awaited, step));
            let mark = if awaited { " *" } else { "" };
            let _ = writeln!(out, "{name:<14}{:>10.3}{:>10.3}{mark}", step.start, step.seconds);
        }
    }
    let end = record.phases.iter().map(|span| span.start + span.seconds.unwrap_or_default());
    let _ = writeln!(out, "{:<14}{:>10.3}", "end", end.fold(0.0, f64::max));
    if record.phases.iter().any(|span| !span.steps.is_empty()) {
        out.push_str("\n* : of what was done side by side, this was waited for\n");
    }
    if record.phases.iter().any(|span| span.seconds.is_none()) {
        out.push_str("\n- : still on when this was written\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Phase, Span, Step};

    #[test]
    fn the_table_shows_what_was_waited_for_and_what_is_still_on() {
        let step = |step: &str, start, seconds| Step { step: step.to_owned(), start, seconds };
        let steps = vec![step("papers", 0.1, 0.3), step("runner", 0.1, 5.25)];
        let (phase, bytes) = (Phase::Fetch, Some(160_000_000));
        let fetch = Span { phase, start: 0.1, seconds: Some(5.25), bytes, steps };
        let (phase, steps) = (Phase::Supervise, vec![]);
        let supervise = Span { phase, start: 5.4, seconds: None, bytes: None, steps };
        let phases = vec![fetch, supervise];
        let table = table(&Record { began_at: "2026-12-01T00:00:00.000Z".to_owned(), phases });
        let expected = "boot of 2026-12-01T00:00:00.000Z\n\n\
             phase             from/s    took/s         bytes\n\
             fetch              0.100     5.250     160000000\n\
             \x20 papers           0.100     0.300\n\
             \x20 runner           0.100     5.250 *\n\
             supervise          5.400         -\n\
             end                5.400\n\n\
             * : of what was done side by side, this was waited for\n\n\
             - : still on when this was written\n";
        assert_eq!(table, expected);
    }
}
