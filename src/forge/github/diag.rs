//! The Listener's own log, `_diag/Runner_<UTC time>-utc.log`: one file a start, trace lines like
//! `[2026-08-07 11:59:46Z INFO Runner] text`. The only place where it says more than its state.
//!
//! Jobs have logs of their own (`Worker_…`); but a job can write into that folder, too.

use super::super::Sign;

pub const FOLDER: &str = "_diag";

/// Whether a file of that folder is a Listener's.
pub fn is_log(name: &str) -> bool {
    name.starts_with("Runner_") && name.to_ascii_lowercase().ends_with(".log")
}

/// The line of its stdout that the Listener repeats in `line`: it writes it here first.
pub fn state_line(line: &str) -> Option<&str> {
    let (class, said) = line.strip_prefix('[')?.split_once("] ")?;
    said.strip_prefix("WRITE LINE: ").filter(|_| class.ends_with("INFO Terminal"))
}

/// What `line` says of the runner's registration, if it says something that its state does not tell.
pub fn sign(line: &str) -> Option<Sign> {
    // HTTP 404 and 409 of `acquirejob` (actions/runner#4617). 422 is not meant: that job was bad.
    const GONE: [&str; 2] = [
        "Skipping message Job. Job message already acquired",
        "Skipping message Job. Job message not found",
    ];
    // The identity service knows it no more, and the runner asks again for ever (actions/runner#4191).
    const UNKNOWN: &str = "Retriable exception: Registration ";
    let (class, said) = line.strip_prefix('[')?.split_once("] ")?;
    if class.ends_with("INFO Runner") && GONE.iter().any(|words| said.starts_with(words)) {
        return Some(Sign::JobLost);
    }
    let is_listener = class.ends_with("MessageListener");
    (is_listener && said.starts_with(UNKNOWN) && said.contains(" was not found"))
        .then_some(Sign::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_its_stdout_is_told_from_the_same_words_elsewhere() {
        let line = "2026-12-01 02:03:04Z: Running job: build";
        let repeated = format!("[2026-12-01 02:03:04Z INFO Terminal] WRITE LINE: {line}");
        assert_eq!(state_line(&repeated), Some(line));
        for other in [
            line.to_owned(),
            format!("[2026-12-01 02:03:04Z INFO JobRunner] WRITE LINE: {line}"),
            format!("[2026-12-01 02:03:04Z INFO Terminal] WRITE: {line}"),
        ] {
            assert_eq!(state_line(&other), None, "{other}");
        }
    }

    #[test]
    fn the_signs_are_known_and_a_bad_job_or_the_same_words_elsewhere_are_none() {
        let table = [
            (
                "[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Job message already \
                 acquired '5f7c2a52'. job assignment is invalid: MissingKey",
                Some(Sign::JobLost),
            ),
            (
                "[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Job message not found 'x'.",
                Some(Sign::JobLost),
            ),
            (
                "[2025-11-07 15:35:21Z INFO BrokerMessageListener] Retriable exception: Registration \
                 5b1b was not found.",
                Some(Sign::Unknown),
            ),
            (
                "[2025-11-07 15:35:21Z INFO BrokerMessageListener] Retriable exception: Bad gateway",
                None,
            ),
            ("[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Unprocessable 'x'.", None),
            ("echo INFO Runner] Skipping message Job. Job message not found", None),
            ("[2026-08-07 11:59:46Z INFO Runner] Received job message", None),
            (
                "[2026-08-07 11:59:46Z INFO Terminal] WRITE LINE: [x INFO Runner] Skipping message \
                 Job. Job message not found",
                None,
            ),
        ];
        for (line, expected) in table {
            assert_eq!(sign(line), expected, "{line}");
        }
    }
}
