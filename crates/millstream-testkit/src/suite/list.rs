//! Macro that lists the cases of a file.

/// Lists the cases of a file. A case that is not listed is dead code, which the compiler reports.
macro_rules! suite {
    ($role:literal: $($name:ident),* $(,)?; with an operator: $($operated:ident),* $(,)?) => {
        pub(crate) fn cases() -> Vec<$crate::case::Case> {
            vec![
                $(suite!(@case $role, $name, false),)*
                $(suite!(@case $role, $operated, true),)*
            ]
        }
    };
    ($role:literal: $($name:ident),* $(,)?) => {
        suite!($role: $($name),*; with an operator:);
    };
    (@case $role:literal, $name:ident, $needs_operator:literal) => {
        $crate::case::Case {
            role: $role,
            name: stringify!($name),
            needs_operator: $needs_operator,
            run: |harness| Box::pin($name(harness)),
        }
    };
}

pub(super) use suite;
