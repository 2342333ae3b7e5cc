//! Edits of letters before they are replayed: by options, or in an editor.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::Args;
use millstream::Limits;
use millstream::admin::Edit;
use millstream::crates::core::wire::{self, Field};

use crate::commands::message::content::{MaxPayload, header, whole};
use crate::exit::Usage;

/// Changes of the messages
#[derive(Args, Clone, Debug)]
pub(in crate::commands) struct EditArgs {
    /// Replaces the payload
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["payload_file", "edit"])]
    set_payload: Option<String>,
    /// Replaces the payload by the content of a file; `-` for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "edit")]
    payload_file: Option<PathBuf>,
    /// Replaces the key
    #[arg(long, value_name = "KEY", conflicts_with = "remove_key")]
    set_key: Option<String>,
    /// Removes the key
    #[arg(long)]
    remove_key: bool,
    /// Sets a header, in place of those with the same name; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    set_header: Vec<(String, Bytes)>,
    /// Removes the headers with this name; can be repeated
    #[arg(long, value_name = "NAME")]
    remove_header: Vec<String>,
    /// Opens the payload of a single message in $VISUAL or $EDITOR
    #[arg(long)]
    pub(in crate::commands) edit: bool,
    #[command(flatten)]
    pub(in crate::commands) max_payload: MaxPayload,
}

impl EditArgs {
    /// Returns the edit from the options.
    pub(in crate::commands) fn edit(&self) -> Result<Edit> {
        let payload = match (&self.set_payload, &self.payload_file) {
            (Some(text), _) => Some(Bytes::from(text.clone())),
            (None, Some(path)) => Some(whole(path, self.max_payload.bytes())?),
            (None, None) => None,
        };
        let key = match (&self.set_key, self.remove_key) {
            (Some(key), _) => Some(Some(Bytes::from(key.clone()))),
            (None, true) => Some(None),
            (None, false) => None,
        };
        let (set_headers, remove_headers) = (self.set_header.clone(), self.remove_header.clone());
        Ok(Edit { payload, key, set_headers, remove_headers })
    }
}

/// Editor of the user: a command, perhaps with options.
#[derive(Debug)]
pub(in crate::commands) struct Editor(String);

impl Editor {
    /// Returns the editor that the user has named, or, at a terminal, `vi`.
    ///
    /// # Errors
    /// [`Usage`] if there is neither.
    pub(in crate::commands) fn find() -> Result<Self> {
        let named = ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok());
        match named.filter(|it| !it.trim().is_empty()) {
            Some(named) => Ok(Self(named)),
            None if io::stdin().is_terminal() && io::stdout().is_terminal() => Ok(Self("vi".to_owned())),
            None => {
                let why = "an editor needs a terminal: --set-payload or --payload-file sets the payload, \
                           or EDITOR names an editor that needs none";
                Err(Usage(why.to_owned()).into())
            }
        }
    }

    /// Opens the payload of a message, and returns the result.
    ///
    /// # Errors
    /// If the editor fails, or nothing was changed.
    pub(in crate::commands) fn open(&self, body: &[Field]) -> Result<Bytes> {
        let envelope = wire::decode_body(body, &Limits::NONE);
        let before = envelope.map(|it| it.payload).unwrap_or_default();
        let file = tempfile::Builder::new().prefix("payload-").tempfile().context("no temporary file")?;
        fs::write(file.path(), &before)?;
        let mut words = self.0.split_whitespace();
        let program = words.next().unwrap_or("vi");
        let ended = Command::new(program).args(words).arg(file.path()).status();
        let ended = ended.with_context(|| format!("cannot start the editor {:?}", self.0))?;
        if !ended.success() {
            bail!("the editor ended with {ended}: nothing was replayed");
        }
        let after = fs::read(file.path())?;
        if after == before {
            bail!("nothing was changed: nothing was replayed");
        }
        Ok(after.into())
    }
}
