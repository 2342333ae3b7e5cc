//! The events: JSON lines from a file, or the sample that comes with the example.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Serialize};

/// The first 4,000 departures of 2013.
const SAMPLE: &[u8] = include_bytes!("sample.jsonl.gz");

/// One departure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Departure {
    /// The number of its line, from 0: what order is checked by.
    #[serde(default)]
    pub(crate) n: usize,
    pub(crate) at: String,
    pub(crate) carrier: String,
    pub(crate) flight: u32,
    /// The aircraft; not always known.
    pub(crate) tail: Option<String>,
    pub(crate) origin: String,
    pub(crate) dest: String,
    /// Minutes; `None` means that the flight was cancelled.
    pub(crate) dep_delay: Option<i32>,
    pub(crate) air_time: Option<u32>,
    pub(crate) distance: u32,
}

impl Departure {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.dep_delay.is_none()
    }
}

/// Reads a file, gzipped or not, or the sample.
pub(crate) fn read(path: Option<&Path>) -> Result<Vec<Departure>> {
    let source: Box<dyn Read> = match path {
        None => Box::new(Cursor::new(SAMPLE)),
        Some(path) => Box::new(File::open(path).with_context(|| format!("cannot open {}", path.display()))?),
    };
    let mut source = BufReader::new(source);
    let gzipped = source.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    let lines: Box<dyn BufRead> =
        if gzipped { Box::new(BufReader::new(MultiGzDecoder::new(source))) } else { Box::new(source) };
    let mut departures = Vec::new();
    for (n, line) in lines.lines().enumerate() {
        let line = line.with_context(|| format!("line {}", n + 1))?;
        if line.trim().is_empty() {
            continue;
        }
        let mut departure: Departure =
            serde_json::from_str(&line).with_context(|| format!("line {} is no departure", n + 1))?;
        departure.n = departures.len();
        departures.push(departure);
    }
    ensure!(!departures.is_empty(), "the file has no departures");
    Ok(departures)
}
