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
    let mut all = Run::default();
    for Step { name, run } in steps {
        all.step(name, run);
    }
    all.end()
}

/// Steps that have run, and their results.
#[derive(Default)]
pub(crate) struct Run {
    summary: String,
    failed: Vec<&'static str>,
    /// Errors of more than a line, with the step.
    errors: String,
    count: u32,
    last_word: String,
}

impl Run {
    /// Runs a step.
    pub(crate) fn step(&mut self, name: &'static str, run: impl FnOnce() -> Result<String>) {
        println!("\n== {name}");
        let started = Instant::now();
        let result = run();
        let seconds = started.elapsed().as_secs();
        let (word, note) = match result {
            Ok(note) => ("ok", note),
            Err(error) => {
                self.failed.push(name);
                let error = format!("{error:#}");
                if error.contains('\n') {
                    self.errors += &format!("\n== what failed in {name}\n{}\n", error.trim_end());
                }
                ("FAILED", error)
            }
        };
        if !note.is_empty() {
            println!("{note}");
            self.last_word.clone_from(&note);
        }
        self.count += 1;
        // A line for each step: an error may be a list, which comes behind the lines.
        let first = note.lines().next().unwrap_or_default();
        self.summary += format!("{name:<18}{word:<8}{seconds:>5} s  {first}").trim_end();
        self.summary.push('\n');
    }

    /// Prints a line for each step, and then all that failed: whoever has only the end of a long output has the reason.
    pub(crate) fn end(self) -> Result<()> {
        println!("\n== summary\n{}{}", self.summary, self.errors);
        if !self.failed.is_empty() {
            bail!("{} of {} steps failed: {}", self.failed.len(), self.count, self.failed.join(", "));
        }
        println!("{}", self.last_word);
        Ok(())
    }
}
