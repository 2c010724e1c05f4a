//! A canvas that knows text, boxes and lines, and the colour of each system.

use std::fmt::Write as _;

#[derive(Debug)]
pub(crate) struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

/// The same in every picture, and told apart by those who see few colours.
pub(crate) fn colour(system: &str) -> &'static str {
    match system {
        "floor" => "#9a9a9a",
        "reference" => "#e69f00",
        "ours" => "#0072b2",
        "pgmq" => "#cc79a7",
        "graphile_worker" => "#009e73",
        "oxide-outbox" => "#d55e00",
        "pgq" => "#7a5cc0",
        _ => "#333333",
    }
}

impl Canvas {
    pub(crate) fn new(width: f64, height: f64, title: &str) -> Self {
        let body = String::new();
        let mut canvas = Self {
            width,
            height,
            body,
        };
        canvas.text(16.0, 26.0, title, "start", 15);
        canvas
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, text: &str, anchor: &str, size: u32) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        writeln!(
            self.body,
            r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" fill="#222">{text}</text>"##
        )
        .ok();
    }

    pub(crate) fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        let width = width.max(1.0);
        writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        )
        .ok();
    }

    pub(crate) fn line(&mut self, points: &[(f64, f64)], colour: &str, width: f64) {
        let points: Vec<_> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#,
            points.join(" ")
        )
        .ok();
    }

    pub(crate) fn finish(self) -> String {
        let Self {
            width,
            height,
            body,
        } = self;
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">
<rect width="{width}" height="{height}" fill="#ffffff"/>
{body}</svg>
"##
        )
    }
}
