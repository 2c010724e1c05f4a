//! Curves over a logarithmic axis, each named at its end.

use super::Curve;
use super::svg::{Canvas, colour};
use crate::table::figure;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 48.0;
const LABEL: f64 = 14.0;

pub(crate) fn draw(title: &str, x_axis: &str, y_axis: &str, curves: &[Curve]) -> String {
    let mut canvas = Canvas::new(WIDTH, HEIGHT, title);
    let points = || curves.iter().flat_map(|(_, points)| points);
    let low = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high = points().map(|point| point.0).fold(low * 1.01, f64::max);
    let top = points()
        .map(|point| point.1)
        .fold(f64::MIN_POSITIVE, f64::max)
        * 1.05;
    let scale = |x: f64| x.max(1e-9).log10();
    let right = WIDTH - RIGHT;
    let bottom = HEIGHT - BOTTOM;
    let across =
        |x: f64| LEFT + (right - LEFT) * (scale(x) - scale(low)) / (scale(high) - scale(low));
    let down = |y: f64| bottom - (bottom - TOP) * y / top;

    for part in 0..=4 {
        let y = top * f64::from(part) / 4.0;
        canvas.line(&[(LEFT, down(y)), (right, down(y))], "#e2e2e2", 1.0);
        canvas.text(LEFT - 8.0, down(y) + 4.0, &figure(y), "end", 11);
    }
    // Few points are marked as they are; many make a curve.
    let marked = curves.iter().all(|(_, points)| points.len() <= 8);
    let longest = curves
        .iter()
        .map(|(_, points)| points)
        .max_by_key(|points| points.len());
    let own: Vec<f64> = longest.into_iter().flatten().map(|point| point.0).collect();
    for x in if marked { own } else { ticks(low, high) } {
        canvas.line(
            &[(across(x), bottom), (across(x), bottom + 5.0)],
            "#888888",
            1.0,
        );
        canvas.text(across(x), bottom + 18.0, &figure(x), "middle", 11);
    }
    canvas.text(
        f64::midpoint(LEFT, right),
        HEIGHT - 10.0,
        x_axis,
        "middle",
        12,
    );
    canvas.text(16.0, TOP - 6.0, y_axis, "start", 12);

    let mut labels: Vec<(f64, &str)> = Vec::new();
    for (system, points) in curves {
        let drawn: Vec<_> = points.iter().map(|(x, y)| (across(*x), down(*y))).collect();
        canvas.line(&drawn, colour(system), 2.2);
        for (x, y) in drawn.iter().filter(|_| marked) {
            canvas.bar(x - 3.0, y - 3.0, 6.0, 6.0, colour(system));
        }
        if let Some((_, y)) = drawn.last() {
            labels.push((*y, system));
        }
    }
    labels.sort_by(|one, other| one.0.total_cmp(&other.0));
    // Names must not lie on each other.
    let mut free = f64::MIN;
    for (y, system) in labels {
        let y = y.max(free);
        canvas.bar(right + 8.0, y - 5.0, 8.0, 8.0, colour(system));
        canvas.text(right + 20.0, y + 3.0, system, "start", 12);
        free = y + LABEL;
    }
    canvas.finish()
}

/// The powers of ten between two figures, and the figures themselves.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let mut ticks = vec![low];
    let mut power = 10_f64.powf(low.log10().ceil());
    while power < high * 0.7 {
        if power > low * 1.4 {
            ticks.push(power);
        }
        power *= 10.0;
    }
    ticks.push(high);
    ticks
}
