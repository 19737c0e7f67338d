//! The commands of docs/cloud-init.md.

use std::fs;

use garm_sim::InstanceSpec;

use super::{YAML, bootstrap, user_data};
use crate::support::page::{Desk, Page};
use crate::support::podman::{Prepared, SYSTEMD};
use crate::support::{good, read};

#[test]
fn the_page_makes_user_data_from_what_garm_gives() {
    let (page, desk) = (Page::read("docs/cloud-init.md"), Desk::new());
    let sim = good();
    let given = bootstrap(&sim.create(InstanceSpec::with_token()));
    fs::write(desk.path("bootstrap.json"), given.to_string()).unwrap();
    let size = desk.run(&page.block("cloud-init-make")).expect_ok("the user data");
    let made = read(&desk.path("user-data"));
    assert_eq!(made, user_data(YAML, &given));
    assert_eq!(size.trim(), made.len().to_string());

    desk.run(&page.block("cloud-init-pack")).expect_ok("packed");
    assert!(fs::metadata(desk.path("user-data.gz")).unwrap().len() > 1000);

    let machine = Prepared::of(SYSTEMD).file(desk.path("user-data"), "/user-data");
    let machine = machine.command(["sleep", "60"]).start();
    let said = machine.sh(&format!("cd /\n{}", page.block("cloud-init-schema")));
    assert!(said.contains("Valid"), "{said}");
}

#[test]
fn the_json_of_the_page_is_that_of_the_files() {
    let blocks = Page::read("docs/cloud-init.md").blocks();
    let shown = blocks.iter().find(|block| block.language == "json").unwrap();
    let file = read(&super::packaged("user-data.sh"));
    assert!(file.contains(&shown.text), "{}", shown.text);
}
