//! Which moves of a runner's state GARM allows (`params.RunnerStatusTransitions`).

/// Every state that the table knows.
#[cfg(test)]
pub(crate) const STATES: [&str; 7] =
    ["pending", "installing", "idle", "active", "failed", "offline", "terminated"];

/// Whether a runner may go from one state to another. The same state, and none, always pass.
pub(crate) fn allowed(from: &str, to: &str) -> bool {
    if to.is_empty() || from == to {
        return true;
    }
    let next: &[&str] = match from {
        "pending" => &["failed", "installing", "terminated", "active"],
        "installing" => &["failed", "idle", "terminated", "active", "offline"],
        "idle" => &["offline", "active", "terminated"],
        "offline" => &["idle", "active", "terminated"],
        "active" | "failed" => &["terminated"],
        _ => &[],
    };
    next.contains(&to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_protocols() {
        let rows = [
            ("pending", [true, true, false, true, true, false, true]),
            ("installing", [false, true, true, true, true, true, true]),
            ("idle", [false, false, true, true, false, true, true]),
            ("active", [false, false, false, true, false, false, true]),
            ("failed", [false, false, false, false, true, false, true]),
            ("offline", [false, false, true, true, false, true, true]),
            ("terminated", [false, false, false, false, false, false, true]),
        ];
        for (from, cells) in rows {
            for (to, cell) in STATES.into_iter().zip(cells) {
                assert_eq!(allowed(from, to), cell, "{from} to {to}");
            }
        }
        for to in ["online", "unknown", "Idle", "bogus"] {
            assert!(!allowed("installing", to), "{to}");
        }
    }
}
