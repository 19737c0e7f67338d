//! What a person types.
//!
//! Owns: the commands, their help, and the mapping of flags to settings by name. Must not: interpret
//! values (`config` does) or act.

use clap::builder::{StyledStr, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::config::Flags;
use crate::config::settings::{self, Kind, Setting};
use crate::exit::Exit;

/// A command that was understood.
#[derive(Debug)]
pub enum Invocation {
    Run { flags: Flags },
}

/// Understands `args` (the program's name first). The error prints itself: it is also how `--help` and
/// `--version` come out.
pub fn parse(
    args: impl IntoIterator<Item = std::ffi::OsString>,
) -> Result<Invocation, clap::Error> {
    let matches = command().try_get_matches_from(args)?;
    match matches.subcommand() {
        Some(("run", matches)) => Ok(Invocation::Run { flags: flags(matches) }),
        _ => unreachable!("clap requires one of the subcommands that exist"),
    }
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
                .args(settings::ALL.iter().filter(|s| s.kind != Kind::Secret).map(|s| arg(s)))
                .after_help(exit_codes()),
        )
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
            let values: Vec<String> = matches.get_many(s.name)?.cloned().collect();
            Some((s.name, values))
        })
        .collect()
}

fn exit_codes() -> StyledStr {
    let line = |exit: &Exit| format!("  {:>2}  {}", exit.code(), exit.meaning());
    let lines: Vec<String> = Exit::ALL.iter().map(line).collect();
    format!("Exit codes:\n{}", lines.join("\n")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> Result<Flags, clap::Error> {
        let args = ["garm-bootstrap", "run"].iter().chain(args).map(Into::into);
        let Invocation::Run { flags } = parse(args)?;
        Ok(flags)
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
