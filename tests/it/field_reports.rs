//! The table of docs/field-reports.md is held to the tests that it names.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_test_that_the_field_reports_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("docs/field-reports.md")).unwrap();
    let unit: String = sources(&root.join("src")).iter().map(|file| read(file)).collect();
    let named: Vec<(&str, &str)> =
        table.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::")).collect();
    assert!(named.len() > 60, "only {} names were found", named.len());
    for (module, name) in named {
        let text = match module {
            "unit" => unit.clone(),
            module => read(&root.join(format!("tests/it/{module}.rs"))),
        };
        assert!(text.contains(&format!("fn {name}(")), "there is no {module}::{name}");
    }
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
