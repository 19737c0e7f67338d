//! The chart of docs/performance.md: two bars for each scenario.

use std::fmt::Write as _;

use serde_json::Value;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 210.0;
const ROW: f64 = 46.0;
const BAR: f64 = 15.0;
const TOP: f64 = 44.0;

/// Draws the scenarios of a report; each pair of bars has the shell's time as its full length, for what
/// counts is the ratio.
pub(super) fn draw(report: &Value) -> String {
    let rows = report["scenarios"].as_array().cloned().unwrap_or_default();
    let height = (0..rows.len()).fold(TOP, |height, _| height + ROW) + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"15\">From exec to idle in GARM: garm-bootstrap (blue) \
         beside today's userdata (grey)</text>\n"
    );
    let mut top = TOP;
    for row in &rows {
        let number = |path: &str| row.pointer(path).and_then(Value::as_f64).unwrap_or_default();
        let (ours, shell) = (number("/ours/seconds/median"), number("/shell/seconds/median"));
        let full = WIDTH - LEFT - 90.0;
        let name = row["name"].as_str().unwrap_or_default();
        let _ = writeln!(svg, "<text x=\"10\" y=\"{}\">{name}</text>", top + 20.0);
        bar(&mut svg, top, full * ours / shell.max(f64::EPSILON), "#2f6fb7", ours);
        bar(&mut svg, top + BAR + 2.0, full, "#b8bcc2", shell);
        top += ROW;
    }
    svg + "</svg>\n"
}

fn bar(svg: &mut String, y: f64, width: f64, fill: &str, seconds: f64) {
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12\">{seconds:.2} s</text>",
        LEFT + width + 6.0,
        y + BAR - 3.0
    );
}
