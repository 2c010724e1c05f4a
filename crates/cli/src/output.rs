//! What a command prints: tables for people, JSON for programs. Everything goes through here, so that
//! colours, pipes and readers who have gone are thought of once.

use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

use crate::failure::Failure;

/// Standard output.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    /// Whoever read it has gone. What was begun is finished all the same.
    unheard: bool,
    stdout: AutoStream<io::Stdout>,
}

/// What a table's cell says, and how it looks.
#[derive(Debug, Default, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
    right: bool,
}

/// The columns of a table that comes bit by bit.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    /// Their titles, until they are printed.
    head: &'a [&'a str],
    widths: Vec<usize>,
}

impl<'a> Columns<'a> {
    pub(crate) fn under(head: &'a [&'a str]) -> Self {
        let widths = head.iter().map(|title| title.width()).collect();
        Self { head, widths }
    }
}

/// A number, to the right.
pub(crate) fn number(number: impl Display) -> Cell {
    Cell {
        text: number.to_string(),
        right: true,
        ..Cell::default()
    }
}

/// Any text on one line.
pub(crate) fn text(text: impl Display) -> Cell {
    Cell {
        text: on_one_line(&text.to_string()),
        ..Cell::default()
    }
}

/// Control characters of what others wrote must not reach the terminal.
pub(crate) fn on_one_line(text: &str) -> String {
    let shown = |character: char| match character {
        '\n' | '\r' | '\t' => ' ',
        character if character.is_control() => char::REPLACEMENT_CHARACTER,
        character => character,
    };
    text.chars().map(shown).collect()
}

impl Cell {
    /// Somebody should look at it.
    pub(crate) fn alarming(mut self, alarming: bool) -> Self {
        if alarming {
            self.style = AnsiColor::Red.on_default().bold();
        }
        self
    }

    /// It matters less.
    pub(crate) fn faint(mut self) -> Self {
        self.style = Style::new().dimmed();
        self
    }
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            unheard: false,
            stdout: AutoStream::auto(io::stdout()),
        }
    }

    /// Whether a program reads it.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether nobody reads it any more.
    pub(crate) fn is_unheard(&self) -> bool {
        self.unheard
    }

    /// A line for people.
    pub(crate) fn line(&mut self, line: impl Display) -> Result<(), Failure> {
        self.write(|stdout| writeln!(stdout, "{line}"))
    }

    /// A document on a line of its own, byte for byte: nothing in it is a colour.
    pub(crate) fn json(&mut self, document: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_string(document).map_err(io::Error::from)?;
        // Characters that JSON allows and terminals obey.
        for control in '\u{7f}'..='\u{9f}' {
            line = line.replace(control, &format!("\\u{:04x}", u32::from(control)));
        }
        self.write(|stdout| writeln!(stdout.as_inner(), "{line}"))
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut AutoStream<io::Stdout>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if self.unheard {
            return Ok(());
        }
        match write(&mut self.stdout) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.unheard = true,
            written => written?,
        }
        Ok(())
    }

    /// A table: columns as wide as they have to be, the last one as it is. Without titles, no head.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<Cell>]) -> Result<(), Failure> {
        self.rows(&mut Columns::under(head), rows)
    }

    /// Rows of a table that comes bit by bit, so that nobody has to have all of it. What is printed stays as
    /// wide as it is; what comes later may be wider.
    pub(crate) fn rows(
        &mut self,
        columns: &mut Columns<'_>,
        rows: &[Vec<Cell>],
    ) -> Result<(), Failure> {
        for (column, width) in columns.widths.iter_mut().enumerate() {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| cell.text.width()).max();
            *width = widest.unwrap_or(0).max(*width);
        }
        let head = std::mem::take(&mut columns.head);
        if head.iter().any(|title| !title.is_empty()) {
            let first = rows.first();
            let titles = head.iter().enumerate().map(|(column, title)| Cell {
                text: (*title).to_owned(),
                style: Style::new().bold(),
                right: first
                    .and_then(|row| row.get(column))
                    .is_some_and(|cell| cell.right),
            });
            self.row(&titles.collect::<Vec<_>>(), &columns.widths)?;
        }
        rows.iter()
            .try_for_each(|row| self.row(row, &columns.widths))
    }

    fn row(&mut self, cells: &[Cell], widths: &[usize]) -> Result<(), Failure> {
        // Writing to a string does not fail.
        let mut line = String::new();
        let filled = cells.iter().rposition(|cell| !cell.text.is_empty());
        let cells = &cells[..filled.map_or(0, |last| last + 1)];
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let Cell { text, style, right } = cell;
            let room = " ".repeat(width.saturating_sub(text.width()));
            let (before, after) = if *right { (&*room, "") } else { ("", &*room) };
            let last = column + 1 == cells.len();
            let (gap, after) = (
                if column > 0 { "  " } else { "" },
                if last { "" } else { after },
            );
            let _ = write!(line, "{gap}{before}{style}{text}{style:#}{after}");
        }
        self.line(line)
    }

    /// Clears a terminal; nothing else.
    pub(crate) fn clear(&mut self) -> Result<(), Failure> {
        if io::IsTerminal::is_terminal(&io::stdout()) {
            self.write(|stdout| write!(stdout, "\x1b[2J\x1b[H").and_then(|()| stdout.flush()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_cannot_drive_the_terminal() {
        assert_eq!(on_one_line("a\nb\u{1b}[2Jc"), "a b\u{fffd}[2Jc");
    }
}
