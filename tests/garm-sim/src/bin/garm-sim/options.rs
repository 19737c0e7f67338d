//! The command line, parsed into what the library takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use garm_sim::archive::ArchiveSize;
use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, InstanceSpec, RunnerScript, SimOptions, Webhooks,
};

/// What `serve` was asked for.
pub(crate) struct Serve {
    pub(crate) sim: SimOptions,
    pub(crate) instance: InstanceSpec,
    pub(crate) faults: Vec<Fault>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) format: Format,
    pub(crate) until_job_ends: bool,
}

/// What is printed at the start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Shell,
    Bootstrap,
}

pub(crate) fn read() -> Result<Serve, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    match matches.subcommand() {
        Some(("serve", matches)) => serve(matches),
        _ => Err(command.error(ErrorKind::MissingSubcommand, "say `serve`")),
    }
}

fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let port = |name, help| option(name, "PORT", help).value_parser(value_parser!(u16));
    let time = |name, help| option(name, "TIME", help).value_parser(duration);
    Command::new("garm-sim")
        .about("A strict simulation of GARM's instance API, with runners to download")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("serve")
                .about("Serves one instance on loopback until Ctrl-C, and prints every call")
                .arg(port("port", "GARM's port [default: a free one]"))
                .arg(port("forge-port", "The forge's port [default: a free one]"))
                .arg(option("name", "NAME", "The instance's name [default: made up]"))
                .arg(flag("not-jit", "The runner must register with a token"))
                .arg(flag("scale-set", "The instance belongs to a scale set"))
                .arg(flag("old", "A GARM 0.1: no runner-metadata, no install-script"))
                .arg(flag("tls", "GARM speaks TLS under a private CA"))
                .arg(
                    option("ca-file", "FILE", "Writes the private CA's certificate there")
                        .value_parser(value_parser!(PathBuf))
                        .requires("tls"),
                )
                .arg(time("job-after", "A job comes so long after the runner listens"))
                .arg(time("job-length", "How long the job takes [default: 100ms]"))
                .arg(flag("no-webhooks", "The forge does not tell GARM of jobs"))
                .arg(flag("until-job-ends", "Ends by itself after the job"))
                .arg(
                    option("archive-size", "SIZE", "How big the runner is")
                        .value_parser(["small", "large"])
                        .default_value("small"),
                )
                .arg(
                    option("archive-cache", "FOLDER", "Where packed runners are kept")
                        .value_parser(value_parser!(PathBuf)),
                )
                .arg(
                    option("script", "KEY=VALUE", "A line of the fake runner's script")
                        .action(ArgAction::Append),
                )
                .arg(
                    option("fail-first", "COUNT", "The first so many calls to GARM get a 503")
                        .value_parser(value_parser!(u64)),
                )
                .arg(flag("bootstrap", "Prints the provider's bootstrap JSON instead of exports")),
        )
}

fn serve(matches: &ArgMatches) -> Result<Serve, clap::Error> {
    let time = |name: &str| matches.get_one::<Duration>(name).copied();
    let mut script = RunnerScript::new();
    if let Some(after) = time("job-after") {
        script = script.job_after(after);
    }
    if let Some(length) = time("job-length") {
        script = script.job(length);
    }
    for line in matches.get_many::<String>("script").into_iter().flatten() {
        let Some((key, value)) = line.split_once('=') else {
            let text = format!("--script takes KEY=VALUE, not `{line}`");
            return Err(command().error(ErrorKind::InvalidValue, text));
        };
        script = script.set(key, value);
    }
    let port = |name: &str| matches.get_one::<u16>(name).copied().unwrap_or(0);
    let large = matches.get_one::<String>("archive-size").is_some_and(|size| size == "large");
    let archive = ArchiveSpec {
        size: if large { ArchiveSize::Large } else { ArchiveSize::Small },
        script,
        cache: matches.get_one::<PathBuf>("archive-cache").cloned(),
        ..ArchiveSpec::default()
    };
    let sim = SimOptions {
        tls: matches.get_flag("tls"),
        no_runner_metadata: matches.get_flag("old"),
        archive,
        webhooks: if matches.get_flag("no-webhooks") { Webhooks::Off } else { Webhooks::AtOnce },
        port: port("port"),
        forge_port: port("forge-port"),
        ..SimOptions::default()
    };
    let base = if matches.get_flag("scale-set") {
        InstanceSpec::of_scale_set()
    } else {
        InstanceSpec::default()
    };
    let instance = InstanceSpec {
        jit: !matches.get_flag("not-jit"),
        name: matches.get_one::<String>("name").cloned().unwrap_or_default(),
        arch: garm_arch().into(),
        ..base
    };
    let fail_first = matches.get_one::<u64>("fail-first").copied();
    let faults = fail_first
        .map(|count| {
            let kind = FaultKind::status(503);
            Fault::new(Endpoint::AnyGarm).times(count).kind(kind)
        })
        .into_iter()
        .collect();
    Ok(Serve {
        sim,
        instance,
        faults,
        ca_file: matches.get_one::<PathBuf>("ca-file").cloned(),
        format: if matches.get_flag("bootstrap") { Format::Bootstrap } else { Format::Shell },
        until_job_ends: matches.get_flag("until-job-ends"),
    })
}

/// The fake Listener is for the machine that this program was built for.
fn garm_arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "arm" => "arm",
        _ => "amd64",
    }
}

/// `250ms`, `2s`, `5m`, or a bare number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 =
        digits.parse().map_err(|_| format!("`{text}` is no time; write 250ms, 2s or 5m"))?;
    match &text[digits.len()..] {
        "ms" => Ok(Duration::from_millis(number)),
        "" | "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        unit => Err(format!("`{unit}` is no unit of time; write ms, s or m")),
    }
}
