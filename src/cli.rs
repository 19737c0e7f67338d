//! What a person types.
//!
//! Owns: the commands, their help, and the mapping of flags to settings by name. Must not: interpret
//! values (`config` does) or act.

use std::ffi::OsString;

use clap::builder::{PossibleValue, StyledStr, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueEnum, value_parser};

use crate::commands::report;
use crate::config::Flags;
use crate::config::settings::{self, Kind, Setting};
use crate::exit::Exit;

const JSON: &str = "json";
const PREPARE_ONLY: &str = "prepare-only";
const STATUS: &str = "status";
const TEXT: &str = "text";
const MORE_TEXT: &str = "more-text";
const AGENT_ID: &str = "agent-id";

/// The settings that count for a single status.
const OF_REPORT: [&Setting; 14] = [
    &settings::CALLBACK_URL,
    &settings::METADATA_URL,
    &settings::TOKEN_FILE,
    &settings::BOOTSTRAP_FILE,
    &settings::CONFIG,
    &settings::CA_FILE,
    &settings::HTTP_PROXY,
    &settings::HTTPS_PROXY,
    &settings::NO_PROXY,
    &settings::HOME,
    &settings::USER,
    &settings::DEADLINE,
    &settings::LOG_LEVEL,
    &settings::LOG_FORMAT,
];

const OF_TIMELINE: [&Setting; 4] =
    [&settings::STATE_DIR, &settings::CONFIG, &settings::LOG_LEVEL, &settings::LOG_FORMAT];

/// A command that was understood.
#[derive(Debug)]
pub enum Invocation {
    Run { flags: Flags },
    Install { flags: Flags },
    Prepare { flags: Flags },
    Report { flags: Flags, order: report::Order },
    Check { flags: Flags },
    Timeline { flags: Flags, json: bool },
}

/// Understands `args` (the program's name first). The error prints itself: it is also how `--help` and
/// `--version` come out.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, clap::Error> {
    let matches = command().try_get_matches_from(args)?;
    match matches.subcommand() {
        Some(("run", matches)) => Ok(Invocation::Run { flags: flags(matches) }),
        Some(("install", matches)) if matches.get_flag(PREPARE_ONLY) => {
            Ok(Invocation::Prepare { flags: flags(matches) })
        }
        Some(("install", matches)) => Ok(Invocation::Install { flags: flags(matches) }),
        Some(("check", matches)) => Ok(Invocation::Check { flags: flags(matches) }),
        Some(("timeline", matches)) => {
            Ok(Invocation::Timeline { flags: flags(matches), json: matches.get_flag(JSON) })
        }
        Some(("report", matches)) => {
            Ok(Invocation::Report { flags: flags(matches), order: order(matches) })
        }
        _ => unreachable!("clap requires one of the subcommands that exist"),
    }
}

/// Whether `args` were to begin a boot, as far as one can tell. What cannot be told was to be one: it is
/// what images do.
pub fn is_boot(args: &[OsString]) -> bool {
    args.get(1).is_none_or(|word| !["report", "check", "timeline"].iter().any(|name| word == name))
}

/// The command line as clap knows it.
pub fn command() -> Command {
    Command::new("garm-bootstrap")
        // The agent of an init has another argv[0].
        .bin_name("garm-bootstrap")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Boots, announces and supervises a CI runner inside an instance that GARM created")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(exit_codes())
        .subcommand(
            Command::new("run")
                .about("Boot the runner, tell GARM, supervise it to its end")
                .arg(
                    Arg::new("init")
                        .long("init")
                        .action(ArgAction::SetTrue)
                        .help("Reap and forward signals as PID 1 does, without being it"),
                )
                .args(all_settings())
                .after_help(exit_codes()),
        )
        .subcommand(install_command())
        .subcommand(report_command())
        .subcommand(
            Command::new("check")
                .about("Say where each setting comes from and what stands in the way of a boot")
                .args(all_settings())
                .after_help(exit_codes_as(&[
                    (Exit::Done, "nothing stands in the way of a boot"),
                    (Exit::Usage, Exit::Usage.meaning()),
                    (Exit::Unreachable, Exit::Unreachable.meaning()),
                    (Exit::Superseded, Exit::Superseded.meaning()),
                    (Exit::AlreadyRun, Exit::AlreadyRun.meaning()),
                ])),
        )
        .subcommand(
            Command::new("timeline")
                .about("Show where the time of the last boot went")
                .arg(
                    Arg::new(JSON)
                        .long(JSON)
                        .action(ArgAction::SetTrue)
                        .help("Print timeline.json as it is"),
                )
                .args(OF_TIMELINE.map(arg)),
        )
}

fn install_command() -> Command {
    Command::new("install")
        .about("Boot up to a configured runner, and leave it in its home for a later run")
        .arg(
            Arg::new(PREPARE_ONLY).long(PREPARE_ONLY).action(ArgAction::SetTrue).help(
                "For images: download, verify, unpack, dependencies; without a GARM or a token",
            ),
        )
        .args(all_settings())
        .after_help(exit_codes_as(&[
            (Exit::Done, "the runner is in its home"),
            (Exit::Usage, Exit::Usage.meaning()),
            (Exit::Unreachable, Exit::Unreachable.meaning()),
            (Exit::Superseded, Exit::Superseded.meaning()),
            (Exit::Refused, Exit::Refused.meaning()),
            (Exit::Fetch, Exit::Fetch.meaning()),
            (Exit::Dependencies, Exit::Dependencies.meaning()),
            (Exit::Configure, Exit::Configure.meaning()),
            (Exit::Stopped, Exit::Stopped.meaning()),
            (Exit::AlreadyRun, Exit::AlreadyRun.meaning()),
            (Exit::Internal, Exit::Internal.meaning()),
        ]))
}

fn report_command() -> Command {
    Command::new("report")
        .about("Tell GARM one status from a script; the exit code tells whether GARM has it")
        .arg(
            Arg::new(STATUS)
                .value_name("STATUS")
                .required(true)
                .value_parser(value_parser!(report::Status))
                .help("What to say"),
        )
        .arg(
            Arg::new(TEXT)
                .value_name("TEXT")
                .value_parser(value_parser!(OsString))
                // What programs say of themselves begins with a dash (-bash: command not found).
                .allow_hyphen_values(true)
                .help(
                    "Text for people; - reads it from stdin, as does no text where stdin is no \
                     terminal",
                ),
        )
        // Of its own, for a list of words that may begin with a dash would swallow the flags after it.
        .arg(Arg::new(MORE_TEXT).num_args(0..).value_parser(value_parser!(OsString)).hide(true))
        .arg(Arg::new(AGENT_ID).long(AGENT_ID).value_name("NUMBER").value_parser(agent_id).help(
            "With idle and system-info: the runner's id at the forge [default: that of \
                     .runner in the home]",
        ))
        .args(OF_REPORT.map(arg))
        .after_help(exit_codes_as(&[
            (Exit::Done, "GARM has it"),
            (Exit::Usage, Exit::Usage.meaning()),
            (Exit::Unreachable, Exit::Unreachable.meaning()),
            (Exit::Superseded, Exit::Superseded.meaning()),
            (Exit::Refused, Exit::Refused.meaning()),
        ]))
}

impl ValueEnum for report::Status {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Installing, Self::Idle, Self::Failed, Self::SystemInfo]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

/// A script that does not know the id has an empty variable, or `null`; 0 is GARM's own "none".
fn agent_id(text: &str) -> Result<Option<u64>, String> {
    match text.trim() {
        "" | "null" => Ok(None),
        number => match number.parse() {
            Ok(id) => Ok(Some(id).filter(|id| *id != 0)),
            Err(_) => Err("the id is a number, or empty where there is none".to_owned()),
        },
    }
}

fn order(matches: &ArgMatches) -> report::Order {
    report::Order {
        // clap lets nothing through without it.
        status: matches.get_one(STATUS).copied().unwrap_or(report::Status::Failed),
        words: [TEXT, MORE_TEXT]
            .into_iter()
            .filter_map(|text| matches.get_many(text))
            .flatten()
            .cloned()
            .collect(),
        agent_id: matches.get_one(AGENT_ID).copied().flatten(),
    }
}

fn all_settings() -> impl Iterator<Item = Arg> {
    settings::ALL.iter().filter(|s| s.kind != Kind::Secret).map(|s| arg(s))
}

fn arg(setting: &'static Setting) -> Arg {
    let names: Vec<String> = setting.env.iter().map(|name| format!("${name}")).collect();
    let help = format!("{} [{}] [default: {}]", setting.help, names.join(", "), setting.default);
    let arg = Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.value)
        .value_parser(ValueParser::string())
        .help(help)
        .help_heading(setting.section);
    match setting.kind {
        Kind::Value | Kind::Commas | Kind::Secret => arg.action(ArgAction::Set),
        Kind::List => arg.action(ArgAction::Append),
        Kind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
    }
}

fn flags(matches: &ArgMatches) -> Flags {
    settings::ALL
        .iter()
        .filter(|s| s.kind != Kind::Secret)
        .filter_map(|s| {
            // Not every command has every setting.
            let values = matches.try_get_many(s.name).ok().flatten()?;
            let values: Vec<String> = values.cloned().collect();
            Some((s.name, values))
        })
        .collect()
}

fn exit_codes() -> StyledStr {
    exit_codes_as(&Exit::ALL.map(|exit| (exit, exit.meaning())))
}

fn exit_codes_as(codes: &[(Exit, &str)]) -> StyledStr {
    let line = |(exit, meaning): &(Exit, &str)| format!("  {:>2}  {meaning}", exit.code());
    let lines: Vec<String> = codes.iter().map(line).collect();
    format!("Exit codes:\n{}", lines.join("\n")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> Result<Flags, clap::Error> {
        let args = ["garm-bootstrap", "run"].iter().chain(args).map(Into::into);
        match parse(args)? {
            Invocation::Run { flags } => Ok(flags),
            other => panic!("{other:?} is no run"),
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn a_switch_is_on_alone_and_off_with_false() {
        assert_eq!(run(&["--jit"]).unwrap()["jit"], ["true"]);
        assert_eq!(run(&["--jit=false"]).unwrap()["jit"], ["false"]);
        assert!(!run(&[]).unwrap().contains_key("jit"));
    }

    #[test]
    fn a_list_keeps_its_order() {
        let flags = run(&["--runner-url", "http://a", "--runner-url", "http://b"]).unwrap();
        assert_eq!(flags["runner-url"], ["http://a", "http://b"]);
    }

    #[test]
    fn no_flag_takes_a_token() {
        let error = run(&["--token", "x"]).unwrap_err().to_string();
        assert!(error.contains("unexpected argument '--token'"), "{error}");
    }

    #[test]
    fn an_unknown_flag_is_named_with_its_nearest_neighbour() {
        let error = run(&["--metadat-url", "x"]).unwrap_err().to_string();
        assert!(error.contains("'--metadata-url'"), "{error}");
    }
}
