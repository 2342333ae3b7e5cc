//! Options of rustdoc that are unstable, by a stable compiler.
//!
//! `RUSTC_BOOTSTRAP` allows them. Build scripts of dependencies read that variable too, and would build everything again, so
//! only rustdoc may see it: cargo calls this program in its place, and this program calls rustdoc.

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::run::Program;

/// Says that this program was called in the place of rustdoc.
const CALLED_AS: &str = "XTASK_AS_RUSTDOC";

/// Lets a call of cargo use unstable options of rustdoc.
pub(crate) fn unstable(cargo: Program) -> Result<Program> {
    let this = env::current_exe().context("where this program is")?;
    Ok(cargo.env("RUSTDOC", this).env(CALLED_AS, "1"))
}

/// Runs rustdoc if this program was called in its place.
pub(crate) fn called() -> Option<ExitCode> {
    env::var_os(CALLED_AS)?;
    // Cargo asks for its version, too; rustup finds the toolchain by the variables that cargo has set.
    let status = Command::new("rustdoc").args(env::args_os().skip(1)).env("RUSTC_BOOTSTRAP", "1").status();
    Some(match status {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1).into(),
        Err(error) => {
            eprintln!("error: rustdoc cannot be run: {error}");
            ExitCode::FAILURE
        }
    })
}
