//! Parts that several commands use.

pub(in crate::commands) mod count_progress;
pub(in crate::commands) mod emptiness;
pub(in crate::commands) mod errors;
pub(in crate::commands) mod failures;
pub(in crate::commands) mod ids;
pub(in crate::commands) mod stderr_tail;
pub(in crate::commands) mod view;
pub(in crate::commands) mod watch;

/// Maximum number of topics that are read at once: one that takes long holds up no other.
pub(in crate::commands) const AT_ONCE: usize = 8;

/// Says what became of a pause, or of its end.
pub(in crate::commands) fn paused(changed: bool, dry_run: bool, paused: bool) -> &'static str {
    match (changed, dry_run, paused) {
        (false, _, true) => "is already paused",
        (false, _, false) => "was not paused",
        (true, true, true) => "would be paused",
        (true, true, false) => "would be resumed",
        (true, false, true) => "is paused",
        (true, false, false) => "is resumed",
    }
}
