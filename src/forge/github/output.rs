//! What actions/runner prints (read from 2.336).
//!
//! Its own state lines begin with a UTC timestamp, `2026-12-01 02:03:04Z: `, at the very start of the
//! line. Trace lines (`[RUNNER …`, `[WORKER …`, `[2026-…`) and the output of a job may hold the same
//! words, so nothing but that beginning makes a line count.

use super::super::{Cause, Event, JobResult};

const COMPLETED: &str = " completed with result: ";

/// The event that `line` reports; `None` for anything that is not a state line.
pub fn read_line(line: &str) -> Option<Event> {
    let said = after_timestamp(line)?.trim_end();
    match said {
        "Listening for Jobs" => return Some(Event::Listening),
        "Runner reconnected." => return Some(Event::Reconnected),
        _ => {}
    }
    if let Some(name) = said.strip_prefix("Running job: ") {
        return Some(Event::JobStarted { name: name.to_owned() });
    }
    // From the right: a job may be called "x completed with result: y".
    let (name, result) = said.strip_prefix("Job ")?.rsplit_once(COMPLETED)?;
    Some(Event::JobCompleted { name: name.to_owned(), result: JobResult::named(result)? })
}

/// Why the runner ended, by the messages of its own that name a cause.
pub fn cause(text: &str) -> Option<Cause> {
    const CAUSES: [(&str, Cause); 6] = [
        ("is deprecated and cannot receive messages", Cause::VersionRefused),
        ("runner registration has been deleted from the server", Cause::RegistrationGone),
        // The identity service's words for the same, when the runner asks it for an access token.
        ("VssOAuthTokenRequestException: Registration ", Cause::RegistrationGone),
        ("Not configured. Run config", Cause::NotConfigured),
        ("A session for this runner already exists", Cause::SessionConflict),
        ("already has an active session", Cause::SessionConflict),
    ];
    CAUSES.iter().find(|(words, _)| text.contains(words)).map(|(_, cause)| *cause)
}

/// What follows `YYYY-MM-DD HH:MM:SSZ: ` at the start of `line`.
fn after_timestamp(line: &str) -> Option<&str> {
    const SHAPE: &[u8] = b"dddd-dd-dd dd:dd:ddZ: ";
    let fits = |(byte, shape): (&u8, &u8)| match shape {
        b'd' => byte.is_ascii_digit(),
        other => byte == other,
    };
    let stamp = line.as_bytes().get(..SHAPE.len())?;
    stamp.iter().zip(SHAPE).all(fits).then(|| &line[SHAPE.len()..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn started(name: &str) -> Event {
        Event::JobStarted { name: name.to_owned() }
    }

    fn completed(name: &str, result: JobResult) -> Event {
        Event::JobCompleted { name: name.to_owned(), result }
    }

    #[test]
    fn only_lines_that_begin_with_a_timestamp_count() {
        let table = [
            ("2026-12-01 02:03:04Z: Listening for Jobs", Some(Event::Listening)),
            ("2026-12-01 02:03:04Z: Listening for Jobs\r", Some(Event::Listening)),
            ("2026-12-01 02:03:04Z: Running job: build (x, 1)", Some(started("build (x, 1)"))),
            (
                "2026-12-01 02:03:04Z: Job build completed with result: Succeeded",
                Some(completed("build", JobResult::Succeeded)),
            ),
            (
                "2026-12-01 02:03:04Z: Job a completed with result: b completed with result: Canceled",
                Some(completed("a completed with result: b", JobResult::Canceled)),
            ),
            ("2026-12-01 02:03:04Z: Runner reconnected.", Some(Event::Reconnected)),
            ("2026-12-01 02:03:04Z: Job build completed with result: Splendid", None),
            ("2026-12-01 02:03:04Z: Listening for Jobs, they say", None),
            (" 2026-12-01 02:03:04Z: Listening for Jobs", None),
            ("[2026-12-01 02:03:04Z INFO Terminal] 2026-12-01 02:03:04Z: Listening for Jobs", None),
            ("[WORKER 2026-12-01 02:03:04Z INFO X] 2026-12-01 02:03:04Z: Running job: x", None),
            ("[RUNNER 2026-12-01 02:03:04Z INFO X] Running job: x", None),
            ("Listening for Jobs", None),
            ("2026-12-01 02:03:04: Listening for Jobs", None),
            ("2026-12-01T02:03:04Z: Listening for Jobs", None),
            ("", None),
        ];
        for (line, event) in table {
            assert_eq!(read_line(line), event, "{line}");
        }
    }

    #[test]
    fn last_words_name_their_cause() {
        let table = [
            (
                "An error occurred: Runner version v2.285.0 is deprecated and cannot receive messages.",
                Some(Cause::VersionRefused),
            ),
            (
                "Failed to create a session. The runner registration has been deleted from the \
                 server, please re-configure.",
                Some(Cause::RegistrationGone),
            ),
            (
                "VssOAuthTokenRequestException: Registration 5b1b was not found.",
                Some(Cause::RegistrationGone),
            ),
            (
                "Not configured. Run config.(sh/cmd) to configure the runner.",
                Some(Cause::NotConfigured),
            ),
            ("A session for this runner already exists.", Some(Cause::SessionConflict)),
            ("Runner connect error: no route. Retrying until reconnected.", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(cause(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (read_line(&text), cause(&text));
            let _ = read_line(&format!("2026-12-01 02:03:04Z: {text}"));
        }

        #[test]
        fn a_job_of_any_name_is_started_and_completed_under_that_name(name in "[^\r\n]{0,40}[^\\s]") {
            let stamp = "2026-12-01 02:03:04Z:";
            prop_assert_eq!(read_line(&format!("{stamp} Running job: {name}")), Some(started(&name)));
            prop_assert_eq!(
                read_line(&format!("{stamp} Job {name} completed with result: Failed")),
                Some(completed(&name, JobResult::Failed))
            );
        }
    }
}
