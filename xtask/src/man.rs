//! The man pages and the completions, made from the command line as clap knows it.
//!
//! One page for the program and one for each command, as git has them. clap_mangen makes what it can
//! see; exit codes, the environment and files are our own sections, from the same lists as the help.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use garm_bootstrap::cli;
use garm_bootstrap::config::settings::{self, Kind, Setting};

/// The completions, from the folder that they are made in, and where a system has them.
pub(crate) const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "garm-bootstrap.bash", "usr/share/bash-completion/completions/garm-bootstrap"),
    (Shell::Zsh, "_garm-bootstrap", "usr/share/zsh/vendor-completions/_garm-bootstrap"),
    (Shell::Fish, "garm-bootstrap.fish", "usr/share/fish/vendor_completions.d/garm-bootstrap.fish"),
];

const FILES: [(&str, &str); 5] = [
    ("/etc/garm-bootstrap/config.toml", "Settings: the keys are the names of the flags."),
    (
        "/var/lib/garm-bootstrap",
        "The state folder of root: used.json says that an instance has had its run, timeline.json where its time went.",
    ),
    ("/run/garm-bootstrap", "The runtime folder of root: what must not outlive a boot."),
    ("~/.local/state/garm-bootstrap", "The state folder of anybody else."),
    (
        ".garm-bootstrap.json",
        "In the runner's home: version, checksum and architecture of the runner.",
    ),
];

/// Writes the man pages into `dir/man` and the completions into `dir/completions`.
pub(crate) fn write(dir: &Path) -> Result<()> {
    let put = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
    };
    let (man, completions) = (dir.join("man"), dir.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    for (name, page) in pages()? {
        put(&man.join(name), page.as_bytes())?;
    }
    for (shell, name, _) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut cli::command(), "garm-bootstrap", &mut script);
        put(&completions.join(name), &script)?;
    }
    Ok(())
}

/// Each page by its file name.
fn pages() -> Result<Vec<(String, String)>> {
    // Built, each command knows its whole name.
    let mut command = cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    let everything = std::iter::once(&command).chain(command.get_subcommands());
    for (number, part) in everything.enumerate() {
        let name = part.get_display_name().unwrap_or("garm-bootstrap").to_owned();
        let help = part.get_after_help().map(ToString::to_string).unwrap_or_default();
        let man = Man::new(part.clone()).title(&name).manual("garm-bootstrap").date("");
        let mut bytes = Vec::new();
        man.render_title(&mut bytes)?;
        man.render_name_section(&mut bytes)?;
        man.render_synopsis_section(&mut bytes)?;
        man.render_description_section(&mut bytes)?;
        man.render_options_section(&mut bytes)?;
        let mut page = Vec::new();
        if number == 0 {
            man.render_subcommands_section(&mut bytes)?;
            page.push(environment());
        }
        page.push(exit_status(&help));
        page.push(list("FILES", FILES.map(|(path, what)| (vec![italic(path)], what.to_owned()))));
        let see = if number == 0 { "garm-bootstrap-run(1)" } else { "garm-bootstrap(1)" };
        page.push(list("SEE ALSO", [(vec![bold(see)], String::new())]));
        let rest: String = page.iter().map(Roff::render).collect();
        pages.push((format!("{name}.1"), String::from_utf8(bytes)? + &rest));
    }
    Ok(pages)
}

fn list(title: &str, entries: impl IntoIterator<Item = (Vec<Inline>, String)>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (head, text) in entries {
        roff.control("TP", []);
        roff.text(head);
        roff.text([roman(text)]);
    }
    roff
}

/// The settings by their names in the environment.
fn environment() -> Roff {
    let entry = |setting: &&'static Setting| {
        let names = setting.env.iter().enumerate();
        let names = names.flat_map(|(number, name)| {
            let comma = (number > 0).then(|| roman(", "));
            comma.into_iter().chain([bold(*name)])
        });
        let flag = match setting.kind {
            Kind::Secret => String::new(),
            _ => format!(" (--{})", setting.name),
        };
        (names.collect(), format!("{}{flag}. Default: {}.", setting.help, setting.default))
    };
    list("ENVIRONMENT", settings::ALL.iter().map(entry))
}

/// The exit codes at the end of a help text.
fn exit_status(help: &str) -> Roff {
    let entry = |line: &str| {
        let (code, meaning) = line.trim().split_once("  ")?;
        Some((vec![bold(code)], meaning.trim().to_owned()))
    };
    list("EXIT STATUS", help.lines().skip(1).filter_map(entry))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What a program says of a file.
    fn run(program: &str, args: &[&str], file: &Path) -> (bool, String) {
        let output = Command::new(program).args(args).arg(file).output();
        let output = output.unwrap_or_else(|why| panic!("{program} is needed here: {why}"));
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    #[test]
    fn every_page_is_read_by_groff_without_a_complaint_and_says_what_it_must() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        let commands = ["", "-run", "-install", "-report", "-check", "-timeline"];
        let names: Vec<String> =
            commands.iter().map(|command| format!("garm-bootstrap{command}.1")).collect();
        assert_eq!(fs::read_dir(dir.path().join("man")).unwrap().count(), names.len());
        for name in &names {
            let page = dir.path().join("man").join(name);
            let (good, said) = run("groff", &["-man", "-Tutf8", "-ww", "-z"], &page);
            assert!(good && said.is_empty(), "{name}: {said}");
        }
        let (_, text) =
            run("groff", &["-man", "-Tascii", "-P-cbou"], &dir.path().join("man/garm-bootstrap.1"));
        for words in ["BEARER_TOKEN", "--callback-url", "EXIT STATUS", "superseded", "FILES"] {
            assert!(text.contains(words), "{words}\n{text}");
        }
    }

    #[test]
    fn every_completion_is_a_script_of_its_shell_and_knows_the_commands() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        for (_, name, _) in COMPLETIONS {
            let text = fs::read_to_string(dir.path().join("completions").join(name)).unwrap();
            for word in ["run", "install", "report", "check", "timeline", "metadata-url"] {
                assert!(text.contains(word), "{name}: {word}");
            }
        }
        let bash = dir.path().join("completions/garm-bootstrap.bash");
        let (good, said) = run("bash", &["-n"], &bash);
        assert!(good && said.is_empty(), "{said}");
        // What a person gets who types this and presses the tabulator.
        let ask = "source \"$0\"; COMP_WORDS=(garm-bootstrap rep); COMP_CWORD=1; \
                   _garm__bootstrap garm-bootstrap rep garm-bootstrap; echo \"${COMPREPLY[@]}\"";
        let output = Command::new("bash").args(["-c", ask]).arg(&bash).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim(), "report", "{}", String::from_utf8_lossy(&output.stderr));
    }
}
