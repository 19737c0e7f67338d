//! What a runner prints during a chatty job, with its own trace switched on.

/// A few kinds of lines, over and over, each with its number in it.
pub(crate) fn lines(count: usize) -> Vec<String> {
    (0..count).map(line).collect()
}

fn line(n: usize) -> String {
    match n % 12 {
        0 => format!("[WORKER 2026-12-01 02:03:04Z INFO JobServerQueue] Try to append {n} lines"),
        1 => {
            format!("\u{1b}[32m   Compiling\u{1b}[0m package-{n} v1.0.{n} (/home/runner/_work/p/p)")
        }
        2 => format!(
            "2026-12-01T02:03:04.{n:07}Z npm warn deprecated package-{n}@1.2.3: no longer kept"
        ),
        3 => format!("test module::tests::a_fact_with_number_{n} ... ok"),
        4 => String::new(),
        5 => format!("✓ {n} Prüfungen bestanden – weiter mit der nächsten"),
        6 => format!("{n} of 5000\r{} of 5000", n + 1),
        7 => format!(
            "{{\"level\":\"info\",\"n\":{n},\"files\":[{}]}}",
            "\"src/main.rs\",".repeat(40)
        ),
        8 => format!("2026-12-01 02:03:04Z: Job build {n} completed with result: Splendid"),
        9 => format!("##[group]Run make step-{n}"),
        10 => format!("make[2]: Entering directory '/home/runner/_work/project/project/part-{n}'"),
        _ => format!("2026-12-01 02:03:04Z: Running job: build {n}"),
    }
}
