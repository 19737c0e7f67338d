//! The fake `Runner.Listener`: a static program without crates that does what the script in its
//! home tells it, and writes down how it was started.
//!
//! It keeps the contract of the real one: subcommands, files, lines, exit codes, signals. It waits
//! on a pipe and timers only, so that hundreds can run at once. The keys of the script are
//! documented at `garm_sim::RunnerScript`.

mod clock;
mod configure;
mod forge;
mod home;
mod job;
mod run;
mod script;
mod system;

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::exit;

use home::Home;
use script::Script;

fn main() {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let words: Vec<String> = args
        .iter()
        .map(|arg| String::from_utf8_lossy(arg.as_bytes()).into_owned())
        .collect();
    let Some(home) = Home::find() else {
        eprintln!("the program's own folder has no parent");
        exit(1);
    };
    let subcommand = words.first().map_or("run", String::as_str);
    if words.iter().any(|word| word == "--version") {
        println!(
            "{}",
            Script::read(&home, 1).text("version").unwrap_or_default()
        );
        return;
    }
    let subcommand = match subcommand {
        "configure" | "remove" | "sim-deps" => subcommand,
        _ => "run",
    };
    let nth = home.start(subcommand, &args);
    let script = Script::read(&home, nth);
    let code = match subcommand {
        "configure" => configure::configure(&home, &script, nth, &words[1..]),
        "remove" => configure::remove(&home, &script, &words[1..]),
        "sim-deps" => configure::dependencies(&home, &script, nth),
        _ => run::run(&home, &script, nth),
    };
    if let Some(signal) = script.number("kill_self").filter(|_| subcommand == "run") {
        home.note(&format!("kills itself with {signal}"));
        system::kill_self(signal as i32);
    }
    home.note(&format!("exit {code}"));
    exit(code);
}
