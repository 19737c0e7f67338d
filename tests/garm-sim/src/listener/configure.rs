//! `configure`, `remove`, and what `installdependencies.sh` does.

use std::env;
use std::fs;
use std::io::{self, BufRead, Write};
use std::time::Duration;

use crate::forge::{Forge, json_string};
use crate::home::{CONFIGURED, Home};
use crate::script::Script;
use crate::system;

const FLAGS: [&str; 7] = [
    "unattended",
    "ephemeral",
    "disableupdate",
    "no-default-labels",
    "replace",
    "local",
    "runasservice",
];
const VALUES: [&str; 8] = [
    "url",
    "token",
    "name",
    "labels",
    "runnergroup",
    "work",
    "pat",
    "auth",
];

#[derive(Default)]
struct Inputs {
    values: Vec<(String, String)>,
    flags: Vec<String>,
    unknown: Vec<String>,
}

impl Inputs {
    /// Arguments first, then `ACTIONS_RUNNER_INPUT_*`.
    fn read(words: &[String]) -> Self {
        let mut inputs = Self::default();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let name = word.strip_prefix("--").unwrap_or_default().to_lowercase();
            if FLAGS.contains(&name.as_str()) {
                inputs.flags.push(name);
            } else if VALUES.contains(&name.as_str()) {
                let value = rest.next().cloned().unwrap_or_default();
                inputs.values.push((name, value));
            } else {
                inputs.unknown.push(word.clone());
            }
        }
        for (key, value) in env::vars() {
            let Some(name) = key.strip_prefix("ACTIONS_RUNNER_INPUT_") else {
                continue;
            };
            let name = name.to_lowercase();
            let flag = name.replace('_', "-");
            if VALUES.contains(&name.as_str()) {
                inputs.values.push((name, value));
            } else if value.eq_ignore_ascii_case("true")
                && (FLAGS.contains(&flag.as_str()) || flag == "no-default-labels")
            {
                inputs.flags.push(flag);
            }
        }
        inputs
    }

    fn value(&self, name: &str) -> &str {
        let found = self.values.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|known| known == name)
    }
}

/// Fixed traces of a step: text, time, hanging, reading stdin. A code if a signal ended it.
fn linger(home: &Home, script: &Script, step: &str) -> Option<i32> {
    if script.is_set(&format!("{step}_hang_hard")) {
        system::catch_signals(&[system::SIGINT, system::SIGTERM]);
        system::wait(None);
    }
    system::catch_signals(&[]);
    let hangs = script.is_set(&format!("{step}_hang"));
    let time = script.time(&format!("{step}_ms")).unwrap_or(Duration::ZERO);
    let signal = if hangs {
        system::wait(None)
    } else {
        system::sleep(time)
    };
    if let Some(number) = signal {
        home.note(&format!("signal {number}"));
        return Some(1);
    }
    if script.is_set(&format!("{step}_reads_stdin")) {
        let mut line = String::new();
        println!("Enter the name of the runner group: [press Enter for Default]");
        let _ = io::stdin().lock().read_line(&mut line);
        home.note(&format!("stdin gave {} bytes", line.len()));
    }
    None
}

fn fails(script: &Script, step: &str, nth: u32) -> Option<i32> {
    let code = script
        .number(&format!("{step}_exit"))
        .map(|code| code as i32);
    match script.number(&format!("{step}_fail_times")) {
        Some(times) => (i64::from(nth) <= times).then(|| code.unwrap_or(1)),
        None => code.filter(|code| *code != 0),
    }
}

pub fn configure(home: &Home, script: &Script, nth: u32, words: &[String]) -> i32 {
    let inputs = Inputs::read(words);
    if !inputs.unknown.is_empty() {
        eprintln!(
            "Unrecognized command-line input arguments: '{}'. For usage refer to: .\\config.cmd --help or ./config.sh --help",
            inputs.unknown.join(", ")
        );
    }
    if home.path(".runner").exists() {
        eprintln!(
            "Cannot configure the runner because it is already configured. To reconfigure the \
             runner, run 'config.cmd remove' or './config.sh remove' first."
        );
        return 1;
    }
    say(&mut io::stdout(), script.bytes("config_stdout"));
    for line in 0..script.number("config_flood_lines").unwrap_or(0) {
        println!("config.sh: line {line} of many that nobody will ever read");
    }
    for _ in 0..script.number("config_children").unwrap_or(0) {
        // They keep the output open, as a daemon does that somebody forgot to detach.
        system::spawn(|| {
            system::ignore_signals();
            std::thread::sleep(Duration::from_secs(3600));
        });
    }
    if let Some(code) = linger(home, script, "config") {
        return code;
    }
    for (name, needed) in [("url", true), ("token", true), ("name", true)] {
        if needed && inputs.value(name).is_empty() {
            eprintln!(
                "Invalid configuration provided for {name}. Terminating unattended configuration."
            );
            return 1;
        }
    }
    if let Some(code) = fails(script, "config", nth) {
        if script.is_set("config_writes_runner_then_fails") {
            write_runner(home, &inputs, "1");
        }
        let text = script.bytes("config_stderr");
        let default = b"Http response code: NotFound from 'POST https://api.github.com/actions/runner-registration'\n";
        say(
            &mut io::stderr(),
            Some(text.unwrap_or_else(|| default.to_vec())),
        );
        return code;
    }
    if script.is_set("config_lies") {
        return 0;
    }
    let bare_replace = inputs.flag("replace") && inputs.unknown.is_empty();
    if script.is_set("config_needs_replace") && !bare_replace {
        return conflict(inputs.value("name"));
    }
    register(home, script, &inputs)
}

fn conflict(name: &str) -> i32 {
    eprintln!("A runner exists with the same name");
    eprintln!("A runner exists with the same name {name}.");
    1
}

fn register(home: &Home, script: &Script, inputs: &Inputs) -> i32 {
    let forge = Forge::at(script, inputs.value("url"), inputs.value("name"));
    let mut agent_id = script.text("agent_id").unwrap_or("1001").to_owned();
    if forge.is_known() {
        let yes = |flag: bool| if flag { "true" } else { "false" };
        let answer = forge.tell(
            "register",
            &[
                ("token", inputs.value("token")),
                ("url", inputs.value("url")),
                ("labels", inputs.value("labels")),
                ("group", inputs.value("runnergroup")),
                ("work", inputs.value("work")),
                ("ephemeral", yes(inputs.flag("ephemeral"))),
                ("replace", yes(inputs.flag("replace"))),
                ("disableupdate", yes(inputs.flag("disableupdate"))),
                ("no_default_labels", yes(inputs.flag("no-default-labels"))),
            ],
        );
        match answer {
            Some((200, body)) => {
                let given = body.lines().find_map(|line| line.strip_prefix("agent_id="));
                if let (Some(given), None) = (given, script.text("agent_id")) {
                    agent_id = given.to_owned();
                }
            }
            Some((409, _)) => return conflict(inputs.value("name")),
            Some((status, _)) => {
                eprintln!(
                    "Http response code: NotFound from 'POST {}' (Request Id: SIM)\n\
                     {{\"message\":\"Not Found\"}}\n\
                     Response status code does not indicate success: {status} (Not Found).",
                    inputs.value("url")
                );
                return 1;
            }
            None => {
                eprintln!(
                    "An error occurred: Connection refused ({})",
                    inputs.value("url")
                );
                return 1;
            }
        }
    }
    if !write_runner(home, inputs, &agent_id) {
        eprintln!(
            "An error occurred: Access to the path '{}' is denied.",
            home.path(".runner").display()
        );
        return 1;
    }
    home.write_secret(
        ".credentials",
        "{\n  \"scheme\": \"OAuth\",\n  \"data\": {\n    \"clientId\": \"sim\"\n  }\n}",
    );
    home.write_secret(
        ".credentials_rsaparams",
        "{\n  \"d\": \"SIMRSAconfigured\",\n  \"exponent\": \"AQAB\"\n}",
    );
    println!("\n√ Runner successfully added\n√ Runner connection is good\n");
    println!("# Runner settings\n\n\n√ Settings Saved.\n");
    if let Some(number) = script.time("config_stays").and_then(system::sleep) {
        home.note(&format!("signal {number}"));
        return 1;
    }
    0
}

/// Camel case, a BOM, a number: what the real configure writes.
fn write_runner(home: &Home, inputs: &Inputs, agent_id: &str) -> bool {
    let url = inputs.value("url");
    let origin: String = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    let group = match inputs.value("runnergroup") {
        "" => "Default",
        group => group,
    };
    let work = match inputs.value("work") {
        "" => "_work",
        work => work,
    };
    let text = format!(
        "\u{feff}{{\n  \"agentId\": {agent_id},\n  \"agentName\": {},\n  \"poolId\": 1,\n  \
         \"poolName\": {},\n  \"ephemeral\": {},\n  \"disableUpdate\": {},\n  \
         \"serverUrl\": {},\n  \"gitHubUrl\": {},\n  \"workFolder\": {}\n}}",
        json_string(inputs.value("name")),
        json_string(group),
        inputs.flag("ephemeral"),
        inputs.flag("disableupdate"),
        json_string(&format!("{origin}/")),
        json_string(url),
        json_string(work),
    );
    fs::write(home.path(".runner"), text).is_ok()
}

pub fn remove(home: &Home, script: &Script, words: &[String]) -> i32 {
    let inputs = Inputs::read(words);
    system::catch_signals(&[]);
    if let Some(code) = linger(home, script, "remove") {
        return code;
    }
    if script.is_set("remove_prompts") {
        println!("Enter runner remove token:");
        let _ = io::stdout().flush();
        let mut line = String::new();
        let _ = io::stdin().lock().read_line(&mut line);
    }
    if let Some(code) = script.number("remove_exit").filter(|code| *code != 0) {
        eprintln!("Failed: Removing runner from the server");
        return code as i32;
    }
    if !inputs.flag("local") {
        if let Some(forge) = Forge::of_runner(home, script) {
            forge.tell("remove", &[]);
        }
        println!("√ Runner removed successfully");
    }
    for name in CONFIGURED {
        home.remove(name);
    }
    println!("√ Removed .credentials\n√ Removed .runner");
    0
}

pub fn dependencies(home: &Home, script: &Script, nth: u32) -> i32 {
    if let Some(code) = linger(home, script, "deps") {
        return code;
    }
    let text = script.bytes("deps_text");
    if let Some(code) = fails(script, "deps", nth) {
        let default = b"E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4242 (apt-get)\n";
        say(
            &mut io::stderr(),
            Some(text.unwrap_or_else(|| default.to_vec())),
        );
        return code;
    }
    say(&mut io::stdout(), text);
    if let Some(path) = script.bytes("deps_creates") {
        let _ = fs::write(String::from_utf8_lossy(&path).as_ref(), b"simulated\n");
    }
    println!(
        "-----------------------------\n Finish Install Dependencies \n-----------------------------"
    );
    0
}

fn say(out: &mut impl Write, text: Option<Vec<u8>>) {
    if let Some(text) = text {
        let _ = out.write_all(&text);
        let _ = out.flush();
    }
}
