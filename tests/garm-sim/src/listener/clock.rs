//! The time in UTC, as the runner prints it.

use std::time::{SystemTime, UNIX_EPOCH};

fn parts() -> (u64, u64, u64, u64, u64, u64, u32) {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = since.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to a civil date, counted in eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    (
        year,
        month,
        day,
        hour,
        minute,
        second,
        since.subsec_millis(),
    )
}

/// `2026-12-01 02:03:04Z`
pub fn line_time() -> String {
    let (year, month, day, hour, minute, second, _) = parts();
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// `2026-12-01T02:03:04.123Z`
pub fn journal_time() -> String {
    let (year, month, day, hour, minute, second, millis) = parts();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// `20261201-020304`
pub fn file_time() -> String {
    let (year, month, day, hour, minute, second, _) = parts();
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}
