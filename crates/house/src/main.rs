//! `house book FOLDER`: writes the sources of the book below a folder. `cargo xtask book` calls it.

use std::env;
use std::path::Path;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["book", folder] => house::book::write(Path::new(folder)),
        _ => bail!("house book FOLDER"),
    }
}
