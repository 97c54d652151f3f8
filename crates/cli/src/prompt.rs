//! What a person types into the shell: queries and the shell's own commands, from a line editor with a history over
//! sessions.

use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::{FileHistory, History};
use rustyline::{Config, Editor};

use crate::statements::{is_complete, split};

/// Entries that the history keeps.
const KEPT: usize = 10_000;

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// Statements, each ended by a semicolon.
    Queries(Vec<String>),
    /// A command of the shell's own, without the backslash.
    Command(String),
    /// Nothing more comes.
    End,
}

/// A line editor on the terminal.
pub(crate) struct Prompt {
    editor: Editor<(), FileHistory>,
    file: Option<PathBuf>,
}

impl Prompt {
    /// The editor, with what earlier sessions typed.
    ///
    /// # Errors
    /// The terminal can't be used.
    pub(crate) fn new() -> Result<Self, ReadlineError> {
        let config = Config::builder().max_history_size(KEPT)?.history_ignore_dups(true)?.auto_add_history(false).build();
        let mut editor: Editor<(), FileHistory> = Editor::with_config(config)?;
        let file = history_file();
        if let Some(path) = &file {
            // There is none before the first session.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, file })
    }

    /// The next input. Ctrl-C drops what was typed of it so far.
    ///
    /// # Errors
    /// The terminal can't be read.
    pub(crate) fn next(&mut self) -> Result<Typed, ReadlineError> {
        let mut written = String::new();
        loop {
            match self.editor.readline(if written.is_empty() { "sql> " } else { "...> " }) {
                Ok(line) if written.is_empty() && line.trim().is_empty() => {}
                Ok(line) => {
                    if written.is_empty()
                        && let Some(command) = own(&line)
                    {
                        self.remember(line.trim());
                        return Ok(if command == "q" { Typed::End } else { Typed::Command(command.to_owned()) });
                    }
                    written.push_str(&line);
                    written.push('\n');
                    if is_complete(&written) {
                        self.remember(written.trim());
                        return Ok(Typed::Queries(split(&written)));
                    }
                }
                Err(ReadlineError::Interrupted) => written.clear(),
                Err(ReadlineError::Eof) => return Ok(Typed::End),
                Err(e) => return Err(e),
            }
        }
    }

    /// Adds an entry to the history, here and in its file. A history that can't be written is no reason to stop.
    fn remember(&mut self, text: &str) {
        if !self.editor.history_mut().add(text).unwrap_or(false) {
            return;
        }
        if let Some(file) = &self.file {
            let made = file.parent().is_none_or(|dir| std::fs::create_dir_all(dir).is_ok());
            let _ = made && self.editor.append_history(file).is_ok();
        }
    }
}

/// The shell's own command in `line`, if it is one.
fn own(line: &str) -> Option<&str> {
    let line = line.trim().trim_end_matches(';').trim_end();
    match line {
        "quit" | "exit" => Some("q"),
        "help" => Some("?"),
        _ => line.strip_prefix('\\'),
    }
}

/// The history's file: `SKYTETHER_HISTORY`, or one in the user's directory for the state of programs. An empty variable
/// means none.
fn history_file() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("SKYTETHER_HISTORY") {
        return (!given.is_empty()).then(|| given.into());
    }
    let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let state = state.or_else(|| std::env::home_dir().map(|home| home.join(".local").join("state")))?;
    Some(state.join("skytether").join("history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_commands_are_told_from_queries() {
        for (line, command) in [("\\d lab.t", Some("d lab.t")), (" quit; ", Some("q")), ("exit", Some("q")), ("SELECT 1;", None), ("help", Some("?"))] {
            assert_eq!(own(line), command, "{line}");
        }
    }
}
