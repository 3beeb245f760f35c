//! Text on a terminal: bold and colour, and how wide it is.

use anstyle::{AnsiColor, Style};
use ratatui::crossterm::terminal;
use std::fmt::Write as _;
use std::io::IsTerminal as _;

/// What a line has in it that tells of something amiss.
const AMISS: [&str; 4] = ["could not get below", "silent for", "was killed", "note: "];
/// What a headline has in it that tells of something amiss.
const UNMANAGED: &str = "not managed: ";

/// The text with headlines, which are not indented, in bold, and lines that tell of something amiss
/// in yellow. `anstream` takes that out again where no terminal shows it.
pub fn emphasised(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let indented = line.starts_with(' ');
        let is_amiss = AMISS.iter().any(|words| line.contains(words));
        let style = if is_amiss || !indented && line.contains(UNMANAGED) {
            AnsiColor::Yellow.on_default()
        } else if indented {
            Style::new()
        } else {
            Style::new().bold()
        };
        let _ = writeln!(out, "{style}{line}{style:#}");
    }
    out
}

/// Columns of the terminal that standard output is; `None` where it is none.
pub fn width() -> Option<usize> {
    let size = std::io::stdout().is_terminal().then(terminal::size)?;
    size.ok().map(|(width, _)| usize::from(width))
}

#[cfg(test)]
mod tests {
    use super::emphasised;

    #[test]
    fn without_a_terminal_the_text_is_as_it_was() {
        let text = "redis  (for 3s)\n  data 1.0M\n  note: 3.0M of other memory\n";
        assert_eq!(anstream::adapter::strip_str(&emphasised(text)).to_string(), text);
        assert!(emphasised(text).contains("\u{1b}["));
    }
}
