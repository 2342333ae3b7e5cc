//! Steps: run all, even after a failure, and sum up.

use std::time::Instant;

use anyhow::{Result, bail};

/// One step of a longer command.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Returns what the summary should say beside "ok"; most have nothing to say.
    pub(crate) run: fn() -> Result<String>,
}

/// The result of a step that has nothing to say.
pub(crate) fn quiet(result: Result<()>) -> Result<String> {
    result.map(|()| String::new())
}

/// Runs all steps and prints a line for each at the end. An error if any failed.
pub(crate) fn run(steps: &[Step]) -> Result<()> {
    let (mut summary, mut failed, mut last_word) = (String::new(), Vec::new(), String::new());
    for Step { name, run } in steps {
        println!("\n== {name}");
        let started = Instant::now();
        let result = run();
        let seconds = started.elapsed().as_secs();
        let (word, note) = match result {
            Ok(note) => ("ok", note),
            Err(error) => {
                failed.push(*name);
                ("FAILED", format!("{error:#}"))
            }
        };
        if !note.is_empty() {
            println!("{note}");
            last_word.clone_from(&note);
        }
        summary += format!("{name:<10}{word:<8}{seconds:>5} s  {note}").trim_end();
        summary.push('\n');
    }
    println!("\n== summary\n{summary}");
    if !failed.is_empty() {
        bail!("{} of {} steps failed: {}", failed.len(), steps.len(), failed.join(", "));
    }
    println!("{last_word}");
    Ok(())
}
