//! The commands of docs/garm-template.md.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::GITHUB;
use crate::support::garm_template::template;
use crate::support::page::{Desk, Page};
use crate::support::{read, static_binary};

/// Knows the commands and flags of GARM's own (0.2.1) that the page has, and notes each call's words.
const GARM_CLI: &str = r#"#!/bin/sh
set -eu
printf '%s\n' "$*" >> calls.txt
command="$1 $2"; shift 2
positional=
while [ $# -gt 0 ]; do
    case "$command $1" in
    "template create --name" | "template create --description" | "template create --forge-type" | \
        "template create --os-type" | "pool update --runner-install-template") shift ;;
    "template create --path") cp "$2" created; shift ;;
    "pool update --extra-specs-file") cp "$2" given.json; shift ;;
    "pool update --extra-specs") printf '%s' "$2" > given.json; shift ;;
    "pool update "[!-]* | "runner show "[!-]*) positional=$1 ;;
    *) echo "garm-cli $command: unknown flag: $1" >&2; exit 1 ;;
    esac
    shift
done
case "$command" in "template create") ;; *) [ -n "$positional" ] ;; esac
"#;

fn desk() -> Desk {
    let desk = Desk::new().with_script("garm-cli", GARM_CLI);
    desk.with_env("POOL", "296c90ce-b0ac-404d-8419-d6407bb5166f").with_env("RUNNER", "garm-1")
}

fn given(desk: &Desk) -> Value {
    serde_json::from_str(&read(&desk.path("given.json"))).unwrap()
}

fn sha256() -> String {
    format!("{:x}", Sha256::digest(fs::read(static_binary()).unwrap()))
}

#[test]
fn the_page_switches_a_pool_of_garm_0_2_and_back() {
    let (page, desk) = (Page::read("docs/garm-template.md"), desk());
    let sum = desk.run(&page.block("template-checksum")).expect_ok("the checksum");
    assert!(sum.starts_with(&sha256()), "{sum}");
    desk.run(&page.block("template-extra-specs")).expect_ok("the extra specs");
    desk.run(&page.block("template-switch")).expect_ok("the switch");
    assert_eq!(read(&desk.path("created")), read(&template(GITHUB)));
    let context = &given(&desk)["extra_context"];
    assert_eq!(context["garm_bootstrap_sha256"], sha256());
    assert!(context["garm_bootstrap_url"].as_str().unwrap().starts_with("https://"));
    desk.run(&page.block("template-back")).expect_ok("the way back");
    desk.run(&page.block("template-look")).expect_ok("a look");
    let calls = read(&desk.path("calls.txt"));
    let pool = "pool update 296c90ce-b0ac-404d-8419-d6407bb5166f";
    assert!(calls.contains(&format!("{pool} --runner-install-template github_linux\n")), "{calls}");
    assert!(calls.ends_with("runner show garm-1\n"), "{calls}");
}

#[test]
fn the_page_switches_a_pool_of_garm_0_1_and_back() {
    let (page, desk) = (Page::read("docs/garm-template.md"), desk());
    desk.run(&page.block("template-switch-01")).expect_ok("the switch");
    let specs = given(&desk);
    assert_eq!(specs["extra_context"]["garm_bootstrap_sha256"], sha256());
    let decoded = STANDARD.decode(specs["runner_install_template"].as_str().unwrap()).unwrap();
    assert_eq!(String::from_utf8(decoded).unwrap(), read(&template(GITHUB)));
    desk.run(&page.block("template-back-01")).expect_ok("the way back");
    assert_eq!(given(&desk), serde_json::json!({}));
}
