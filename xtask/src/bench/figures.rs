//! Medians, ratios and their table.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::boot::Boot;

/// A figure of several rounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    pub(super) median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |n: usize| values.get(n).copied().unwrap_or(f64::NAN);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            at(half)
        } else {
            f64::midpoint(at(half.wrapping_sub(1)), at(half))
        };
        Self { median, min: at(0), max: at(values.len().wrapping_sub(1)) }
    }

    pub(super) fn to_json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

/// Both sides of a scenario; a ratio is of each round's pair, so that what slows both down cancels out.
pub(super) fn compare(name: &str, ours: &[Boot], theirs: &[Boot]) -> Value {
    let ratio = |figure: fn(&Boot) -> f64| {
        let pairs = ours.iter().zip(theirs).map(|(our, their)| figure(our) / figure(their));
        Spread::of(pairs.collect()).to_json()
    };
    json!({
        "name": name,
        "ours": side(ours),
        "shell": side(theirs),
        "ratio": { "seconds": ratio(|boot| boot.seconds), "cpu": ratio(|boot| boot.cpu) },
    })
}

fn side(boots: &[Boot]) -> Value {
    let spread =
        |figure: fn(&Boot) -> f64| Spread::of(boots.iter().map(figure).collect()).to_json();
    let mut phases = serde_json::Map::new();
    for name in boots.first().into_iter().flat_map(|boot| boot.phases.keys()) {
        let seconds = boots.iter().filter_map(|boot| boot.phases.get(name).copied()).collect();
        phases.insert(name.clone(), Spread::of(seconds).median.into());
    }
    json!({
        "seconds": spread(|boot| boot.seconds),
        "cpu": spread(|boot| boot.cpu),
        "peak_kb": boots.iter().filter_map(|boot| boot.peak_kb).max(),
        "requests": boots.iter().map(|boot| boot.requests).max(),
        "connections": boots.iter().map(|boot| boot.connections).max(),
        "phases": phases,
    })
}

/// What people read.
pub(super) fn table(report: &Value) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n{:<33}{:>9}{:>9}{:>18}{:>8}{:>8}{:>7}{:>10}{:>6}{:>6}",
        "scenario",
        "ours/s",
        "shell/s",
        "ratio",
        "CPU/s",
        "shell",
        "ratio",
        "peak/MB",
        "calls",
        "conn"
    );
    for row in report["scenarios"].as_array().into_iter().flatten() {
        let number = |path: &str| row.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let spread = format!(
            "{:.2} ({:.2}-{:.2})",
            number("/ratio/seconds/median"),
            number("/ratio/seconds/min"),
            number("/ratio/seconds/max")
        );
        let _ = writeln!(
            text,
            "{:<33}{:>9.3}{:>9.3}{spread:>18}{:>8.2}{:>8.2}{:>7.2}{:>10.1}{:>6}{:>6}",
            row["name"].as_str().unwrap_or_default(),
            number("/ours/seconds/median"),
            number("/shell/seconds/median"),
            number("/ours/cpu/median"),
            number("/shell/cpu/median"),
            number("/ratio/cpu/median"),
            number("/ours/peak_kb") / 1024.0,
            number("/ours/requests"),
            number("/ours/connections"),
        );
    }
    text.push_str(&others(report));
    text
}

fn others(report: &Value) -> String {
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let listener = number("/listener_seconds/median");
    let overhead = number("/scenarios/2/ours/seconds/median") - listener;
    let mut text = String::new();
    let mut line = |name: &str, value: f64, unit: &str| {
        if !value.is_nan() {
            let _ = writeln!(text, "{name:<52}{value:>9.2} {unit}");
        }
    };
    line("the fake Listener by itself", listener * 1000.0, "ms");
    line("in the image: boot less the Listener", overhead * 1000.0, "ms");
    let inflate = |what: &str| number(&format!("/scenarios/0/fetch_to_inflate/{what}"));
    line("inflating to nowhere", inflate("inflate/median"), "s");
    line("fetch phase against it", inflate("ratio/median"), "times");
    line("  at least", inflate("ratio/min"), "times");
    line("  at most", inflate("ratio/max"), "times");
    line("resident when idle", number("/memory/rss_idle_kb") / 1024.0, "MB");
    line("resident in a job", number("/memory/rss_in_job_kb") / 1024.0, "MB");
    line("of that not shared with the file", number("/memory/rss_anon_in_job_kb") / 1024.0, "MB");
    line("wake-ups of an idle agent", number("/wake_ups/per_minute"), "a minute");
    line("binary", number("/binary_bytes") / 1e6, "MB");
    text
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn the_median_is_the_middle_one_or_between_the_two() {
        assert!((Spread::of(vec![3.0, 1.0, 2.0]).median - 2.0).abs() < 1e-9);
        let even = Spread::of(vec![4.0, 1.0, 2.0, 3.0]);
        assert!((even.median - 2.5).abs() < 1e-9 && even.min < 1.1 && even.max > 3.9);
    }
}
