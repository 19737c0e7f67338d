//! The Listener's own log, `_diag/Runner_<UTC time>-utc.log`: one file a start, trace lines like
//! `[2026-08-07 11:59:46Z INFO Runner] text`. The only place where it says more than its state.
//!
//! Jobs have logs of their own (`Worker_…`); but a job can write into that folder, too.

pub const FOLDER: &str = "_diag";

/// Whether a file of that folder is a Listener's.
pub fn is_log(name: &str) -> bool {
    name.starts_with("Runner_") && name.to_ascii_lowercase().ends_with(".log")
}

/// Whether `line` says that a job that was assigned to this runner went to nobody or to another one
/// (HTTP 404 and 409 of `acquirejob`). The forge has then taken an ephemeral runner's registration away,
/// while the runner listens on for ever (actions/runner#4617). 422 is not meant: that job was bad.
pub fn has_lost_its_job(line: &str) -> bool {
    const SKIPPED: &str = "INFO Runner] Skipping message Job. ";
    const GONE: [&str; 2] = ["Job message already acquired", "Job message not found"];
    line.starts_with('[')
        && line.split_once(SKIPPED).is_some_and(|(_, why)| GONE.iter().any(|g| why.starts_with(g)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_job_is_known_and_a_bad_one_or_the_same_words_elsewhere_are_not() {
        let table = [
            (
                "[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Job message already \
                 acquired '5f7c2a52'. job assignment is invalid: MissingKey",
                true,
            ),
            (
                "[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Job message not found 'x'.",
                true,
            ),
            ("[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Unprocessable 'x'.", false),
            ("echo INFO Runner] Skipping message Job. Job message not found", false),
            ("[2026-08-07 11:59:46Z INFO Runner] Received job message", false),
        ];
        for (line, lost) in table {
            assert_eq!(has_lost_its_job(line), lost, "{line}");
        }
    }
}
