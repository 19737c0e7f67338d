//! The README's tables are the code's lists.

use std::fmt::Write as _;

use garm_bootstrap::config::settings::{ALL, Kind, Setting};
use garm_bootstrap::exit::Exit;

/// What stands in the README between `<!-- name -->` and `<!-- /name -->`.
fn section(name: &str) -> String {
    let readme = include_str!("../../README.md");
    let (begin, end) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let (_, rest) = readme.split_once(&begin).unwrap_or_else(|| panic!("README.md has no {begin}"));
    let (section, _) = rest.split_once(&end).unwrap_or_else(|| panic!("README.md has no {end}"));
    section.trim().to_owned()
}

fn flag(setting: &Setting) -> String {
    match setting.kind {
        Kind::Secret => "none: a secret must not stand in an argument list".to_owned(),
        Kind::Switch => format!("`--{}[=false]`", setting.name),
        Kind::List => format!("`--{} {}` (repeatable)", setting.name, setting.value),
        Kind::Value | Kind::Commas => format!("`--{} {}`", setting.name, setting.value),
    }
}

fn settings_table() -> String {
    let mut table =
        String::from("| flag | environment | default | what it is |\n|---|---|---|---|\n");
    for setting in ALL {
        let names: Vec<String> = setting.env.iter().map(|name| format!("`{name}`")).collect();
        let row =
            [flag(setting), names.join(", "), setting.default.to_owned(), setting.help.to_owned()];
        let row = row.map(|cell| cell.replace('|', "\\|"));
        writeln!(table, "| {} |", row.join(" | ")).unwrap();
    }
    table.trim().to_owned()
}

fn exit_codes_table() -> String {
    let mut table = String::from("| code | meaning |\n|---|---|\n");
    for exit in Exit::ALL {
        writeln!(table, "| {} | {} |", exit.code(), exit.meaning()).unwrap();
    }
    table.trim().to_owned()
}

/// With `UPDATE_README` set the section is written instead.
fn check(name: &str, right: &str) {
    let stands = section(name);
    if stands == right {
        return;
    }
    if std::env::var_os("UPDATE_README").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
        let readme = std::fs::read_to_string(file).unwrap();
        std::fs::write(file, readme.replacen(&stands, right, 1)).unwrap();
        return;
    }
    panic!(
        "the section \"{name}\" of README.md is to be (UPDATE_README=1 writes it):\n\n{right}\n"
    );
}

#[test]
fn the_settings_of_the_readme_are_those_of_the_code() {
    check("settings", &settings_table());
}

#[test]
fn the_exit_codes_of_the_readme_are_those_of_the_code() {
    check("exit codes", &exit_codes_table());
}
