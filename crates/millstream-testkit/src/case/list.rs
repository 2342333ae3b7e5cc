//! Macro that lists the cases of a file.

/// Lists the cases of a file, each with the capabilities that it needs beside its role. A case that is not listed is dead
/// code, which the compiler reports.
macro_rules! suite {
    (
        $role:literal: $($name:ident $(needs [$($need:ident),*])?),* $(,)?;
        with an operator: $($operated:ident $(needs [$($also:ident),*])?),* $(,)?
    ) => {
        pub(crate) fn cases() -> Vec<$crate::case::Case> {
            vec![
                $(suite!(@case $role, $name, false, [$($($need),*)?]),)*
                $(suite!(@case $role, $operated, true, [$($($also),*)?]),)*
            ]
        }
    };
    ($role:literal: $($name:ident $(needs [$($need:ident),*])?),* $(,)?) => {
        suite!($role: $($name $(needs [$($need),*])?),*; with an operator:);
    };
    (@case $role:literal, $name:ident, $needs_operator:literal, [$($need:ident),*]) => {
        $crate::case::Case {
            role: $role,
            name: stringify!($name),
            needs_operator: $needs_operator,
            beside: &[$(millstream_core::Capability::$need),*],
            run: |harness| Box::pin($name(harness)),
        }
    };
}

pub(crate) use suite;
