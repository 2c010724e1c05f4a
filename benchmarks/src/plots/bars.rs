//! Groups of bars, each group with a scale of its own: its longest bar is full width.

use super::svg::{Canvas, colour};
use crate::table::figure;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 110.0;
const BAR: f64 = 16.0;
const GAP: f64 = 4.0;
const HEAD: f64 = 30.0;

pub(crate) fn draw(title: &str, groups: &[(&str, Vec<(&str, f64)>)]) -> String {
    let rows: usize = groups.iter().map(|(_, figures)| figures.len()).sum();
    let height = 40.0 + groups.len() as f64 * HEAD + rows as f64 * (BAR + GAP) + 12.0;
    let mut canvas = Canvas::new(WIDTH, height, title);
    let mut y = 40.0;
    for (name, figures) in groups {
        canvas.text(16.0, y + 18.0, name, "start", 13);
        y += HEAD;
        let longest = figures
            .iter()
            .map(|(_, value)| *value)
            .fold(f64::MIN_POSITIVE, f64::max);
        for (system, value) in figures {
            let width = (WIDTH - LEFT - RIGHT) * value / longest;
            canvas.text(LEFT - 8.0, y + 12.5, system, "end", 12);
            canvas.bar(LEFT, y, width, BAR, colour(system));
            canvas.text(LEFT + width + 6.0, y + 12.5, &figure(*value), "start", 12);
            y += BAR + GAP;
        }
    }
    canvas.finish()
}
