//! `millstream completions`: the completion scripts for shells.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::Cli;
use crate::exit::Exit;
use crate::output::Output;

/// Prints the completion script of a shell
///
/// Those of bash, fish and zsh also complete the names of topics, groups and delay queues, which they ask the server for.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream completions bash > ~/.local/share/bash-completion/completions/millstream
  millstream completions zsh > ~/.zfunc/_millstream
  millstream completions fish > ~/.config/fish/completions/millstream.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Asks for names first. Where none is expected, the generated function completes the word.
const BASH: &str = r#"
_millstream_names() {
    local IFS=$'\n'
    COMPREPLY=($("${COMP_WORDS[0]}" complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 0 ]]; then
        unset IFS
        _millstream "$@"
    fi
}

complete -F _millstream_names -o bashdefault -o default millstream
"#;

/// Adds names to what is completed by itself.
const FISH: &str = r#"
function __fish_millstream_names
    set -l words (commandline -opc)
    $words[1] complete $words[2..] (commandline -ct) 2>/dev/null
end
complete -c millstream -f -a "(__fish_millstream_names)"
"#;

/// Completes names, for arguments that are names: `_arguments` calls it in the place of `_default`.
const ZSH: &str = r#"
_millstream_names() {
    local -a line names
    line=(${(z)LBUFFER})
    [[ $LBUFFER == *[[:space:]] ]] && line+=('')
    names=(${(f)"$($line[1] complete "${(@)line[2,-1]}" 2>/dev/null)"})
    compadd -a names
}
"#;

/// Arguments that are names, as the script of zsh calls them.
const NAMES: [&str; 6] = ["topic", "topics", "group", "queue", "queues", "name"];

impl Completions {
    pub(crate) fn run(self, output: Output) -> Result<Exit> {
        let mut text = Vec::new();
        generate(self.shell, &mut Cli::command(), "millstream", &mut text);
        let text = String::from_utf8(text)?;
        output.write(&match self.shell {
            Shell::Bash => text + BASH,
            Shell::Fish => text + FISH,
            Shell::Zsh => zsh(&text),
            _ => text,
        })?;
        Ok(Exit::Done)
    }
}

/// Returns the script with names completed: the generated one describes a positional argument as
/// `':topic -- The topic:_default'`, and an option as `'--group=[Only this group]:GROUP:_default'`.
fn zsh(text: &str) -> String {
    let mut script = String::with_capacity(text.len() + ZSH.len());
    for line in text.lines() {
        let trimmed = line.trim_start_matches(['\'', ' ', '*', ':']);
        let positional = NAMES.iter().any(|name| trimmed.starts_with(&format!("{name} --")));
        let option = ["]:TOPIC:", "]:GROUP:", "]:QUEUE:"].iter().any(|value| line.contains(value));
        if positional || option {
            script += &line.replace(":_default'", ":_millstream_names'");
        } else {
            script += line;
        }
        script.push('\n');
        if line.starts_with("#compdef") {
            script += ZSH;
        }
    }
    script
}
