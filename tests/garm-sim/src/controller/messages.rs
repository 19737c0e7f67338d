//! An instance's status rows, complete and as GARM would keep them.

use std::time::Duration;

/// How many rows GARM keeps.
const KEPT: usize = 30;

/// What made a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// A callback to `status`.
    Status,
    /// The registration token was handed out.
    FetchToken,
}

/// One status row.
#[derive(Clone, Debug)]
pub struct Message {
    /// When it was stored, from the simulation's start.
    pub at: Duration,
    /// What made it.
    pub event: EventType,
    /// The text, verbatim.
    pub message: String,
    /// The status that was posted with it.
    pub status: Option<String>,
    /// False when GARM stored the row but refused the update (400).
    pub accepted: bool,
    /// The row's random id.
    pub(crate) id: u128,
}

/// What a real GARM would still have: it prunes to 30 rows in the order of their random ids, so
/// the newest may be the one that goes.
pub(crate) fn pruned(all: &[Message]) -> Vec<Message> {
    let mut kept: Vec<Message> = Vec::new();
    for message in all {
        kept.push(message.clone());
        if kept.len() > KEPT {
            let lowest =
                kept.iter().enumerate().min_by_key(|(_, row)| row.id).map_or(0, |(index, _)| index);
            kept.remove(lowest);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruning_goes_by_id_and_not_by_age() {
        let all: Vec<Message> = (0..121u128)
            .map(|n| Message {
                at: Duration::ZERO,
                event: EventType::Status,
                message: n.to_string(),
                status: None,
                accepted: true,
                id: 1000 - n,
            })
            .collect();
        let kept = pruned(&all);
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0].message, "0", "the newest always had the lowest id");
    }
}
