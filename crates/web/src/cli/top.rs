//! Sections of `tidegate top`: each service reads its own from a running server.

use super::{Output, Tone};

/// A table of one screen.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct TopSection {
    /// Its title.
    pub title: String,
    /// A line of totals beside the title.
    pub summary: String,
    /// Names of the columns.
    pub head: Vec<&'static str>,
    /// Its rows, the most important first.
    pub rows: Vec<Vec<String>>,
}

impl TopSection {
    /// Creates a section without rows.
    pub fn new(title: &str, summary: String, head: &[&'static str]) -> TopSection {
        TopSection { title: title.to_owned(), summary, head: head.to_vec(), rows: Vec::new() }
    }

    /// Returns its lines: a title, a head, and at most `rows` rows; the last line says how many are left out.
    /// No line is wider than `columns`.
    fn lines(&self, output: &Output, rows: usize, columns: usize) -> Vec<String> {
        let title = format!("{}  {}", self.title, self.summary);
        let mut lines = vec![output.paint(Tone::Strong, &cut(title.trim_end(), columns))];
        if self.rows.is_empty() {
            return lines;
        }
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.max(self.head.get(column).map_or(0, |name| name.len()))
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::from("  ");
            for (index, (cell, width)) in cells.zip(&widths).enumerate() {
                let pad: String =
                    std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())).collect();
                // Names on the left, numbers on the right.
                line.push_str(&if index == 0 {
                    format!("{cell}{pad}")
                } else {
                    format!("{pad}{cell}")
                });
                line.push_str("  ");
            }
            cut(line.trim_end(), columns)
        };
        lines.push(output.paint(Tone::Dim, &line(&mut self.head.iter().copied())));
        let shown = if self.rows.len() > rows { rows.saturating_sub(1) } else { self.rows.len() };
        for row in self.rows.iter().take(shown) {
            lines.push(line(&mut row.iter().map(String::as_str)));
        }
        if shown < self.rows.len() {
            let more = format!("  and {} more", self.rows.len() - shown);
            lines.push(output.paint(Tone::Dim, &more));
        }
        lines
    }
}

/// Lays sections out for a screen. Rows that do not fit are left out, of the longest sections first.
pub fn lay_out(
    sections: &[TopSection],
    output: &Output,
    lines: usize,
    columns: usize,
) -> Vec<String> {
    // A title, a head and an empty line each.
    let fixed = sections.len() * 3;
    let mut room: Vec<usize> = sections.iter().map(|section| section.rows.len()).collect();
    while room.iter().sum::<usize>() + fixed > lines.max(fixed + sections.len()) {
        let Some(longest) = room.iter_mut().max_by_key(|rows| **rows).filter(|rows| **rows > 1)
        else {
            break;
        };
        *longest -= 1;
    }
    let mut screen = Vec::new();
    for (section, rows) in sections.iter().zip(room) {
        screen.extend(section.lines(output, rows, columns));
        screen.push(String::new());
    }
    screen.pop();
    screen
}

/// Cuts a line to a number of characters.
fn cut(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    let kept: String = line.chars().take(columns.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(title: &str, rows: usize) -> TopSection {
        let mut section = TopSection::new(title, "all of it".to_owned(), &["NAME", "COUNT"]);
        section.rows = (0..rows).map(|n| vec![format!("{title}-{n}"), n.to_string()]).collect();
        section
    }

    #[test]
    fn a_screen_is_never_longer_or_wider_than_the_terminal() {
        let output = Output::plain();
        let sections = [section("queues", 40), section("types", 3), section("workers", 500)];
        for (lines, columns) in [(24, 80), (50, 132), (200, 40)] {
            let screen = lay_out(&sections, &output, lines, columns);
            assert!(screen.len() <= lines, "{} lines in {lines}", screen.len());
            assert!(screen.iter().all(|line| line.chars().count() <= columns), "{screen:?}");
            assert!(screen.iter().any(|line| line.contains("types-2")), "short ones are whole");
            assert!(
                screen.iter().any(|line| line.starts_with("  and ")),
                "what is left out is said"
            );
        }
        assert!(lay_out(&sections, &output, usize::MAX, 80).len() > 500, "a file has no end");
    }
}
