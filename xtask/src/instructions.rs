//! `cargo xtask instructions`: how many instructions the pure parts take, as a ratio to the committed figures.
//!
//! Time is noise on a shared machine; instructions are not. The workloads of `tests/bench` are built as the
//! shipped binary is, and callgrind counts what happens in `counted`. The same program takes the same number
//! each time, but for the archive policy, whose hash tables have random keys (0.1 % and less); another processor
//! (another memcpy) was good for 0.4 %. Another compiler can be good for much more, so the figures say which
//! one they are of, and a comparison with another is told aloud and held to a wider bound.
//!
//! Owns: the bounds, and the file of the figures. Must not: know what the workloads do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{dist, shell};

const PROGRAM: &str = "garm-bench";
/// The function that is counted with all that it calls, by its name in the program.
const COUNTED: &str = "*garm_bench::counted*";
const UPDATE: &str = "cargo xtask instructions --update";
/// The most that a part may take of the committed figure: counted with the same compiler, and with another.
const BOUND: f64 = 1.10;
const BOUND_ACROSS: f64 = 1.50;
/// Below it the figure is so old that a slip could hide behind it.
const LOWERED: f64 = 0.90;

/// Counts and compares, or writes the figures down with `--update`.
pub(crate) fn run(mut args: impl Iterator<Item = String>) -> Result<()> {
    let update = match args.next().as_deref() {
        None => false,
        Some("--update") => true,
        Some(other) => bail!("there is no option \"{other}\", only --update"),
    };
    let counted = Figures { compiler: compiler()?, counts: count()? };
    let file = shell::root().join("tests/bench/instructions.txt");
    if update {
        fs::write(&file, counted.to_text())?;
        print!("{}", counted.to_text());
        return Ok(());
    }
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let committed = Figures::read(&text).with_context(|| format!("read {}", file.display()))?;
    let verdict = compare(&committed, &counted)?;
    println!("{}", verdict.shown.join("\n"));
    ensure!(verdict.slips.is_empty(), "{}", verdict.slips.join("\n"));
    Ok(())
}

/// The compiler and what it compiles for.
fn compiler() -> Result<String> {
    let version = shell::read(Command::new("rustc").arg("--version"))?;
    Ok(format!("{} for {}", version.trim(), dist::target()?))
}

/// The instructions of every workload.
fn count() -> Result<BTreeMap<String, u64>> {
    // callgrind finds the function by its name.
    shell::run(&mut dist::build(PROGRAM)?)?;
    let program = dist::made(PROGRAM)?;
    let folder = dist::target_dir()?.join("instructions");
    fs::create_dir_all(&folder)?;
    let names = shell::read(&mut Command::new(&program))?;
    names.lines().map(|name| Ok((name.to_owned(), count_one(&program, name, &folder)?))).collect()
}

/// The instructions of one; its profile stays in `folder`, for callgrind_annotate.
fn count_one(program: &Path, name: &str, folder: &Path) -> Result<u64> {
    let profile: PathBuf = folder.join(name);
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", &format!("--toggle-collect={COUNTED}")]);
    valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
    shell::read(valgrind.arg(program).arg(name))?;
    let text = fs::read_to_string(&profile)
        .with_context(|| format!("read callgrind's {}", profile.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total: u64 = total.context("callgrind has written no total")?.trim().parse()?;
    ensure!(total > 0, "callgrind has not met {COUNTED} in {name}");
    Ok(total)
}

/// What was counted, and with what.
#[derive(Debug, PartialEq)]
struct Figures {
    compiler: String,
    counts: BTreeMap<String, u64>,
}

impl Figures {
    const COMPILER: &str = "compiler: ";

    fn read(text: &str) -> Result<Self> {
        let (mut compiler, mut counts) = (None, BTreeMap::new());
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix(Self::COMPILER) {
                compiler = Some(name.to_owned());
                continue;
            }
            let figure = line.split_once(' ').and_then(|(name, count)| {
                Some((name.to_owned(), count.trim().replace('_', "").parse().ok()?))
            });
            counts.extend([figure.with_context(|| format!("\"{line}\" is no figure"))?]);
        }
        Ok(Self { compiler: compiler.context("it names no compiler")?, counts })
    }

    fn names(&self) -> Vec<&String> {
        self.counts.keys().collect()
    }

    fn to_text(&self) -> String {
        let counts =
            self.counts.iter().map(|(name, n)| format!("{name:<16} {:>12}\n", grouped(*n)));
        format!(
            "# The instructions of the pure parts. Written by `{UPDATE}`.\n{}{}\n{}",
            Self::COMPILER,
            self.compiler,
            counts.collect::<String>()
        )
    }
}

/// What a person is shown, and what is worse than it may be.
struct Verdict {
    shown: Vec<String>,
    slips: Vec<String>,
}

fn compare(committed: &Figures, counted: &Figures) -> Result<Verdict> {
    ensure!(
        committed.names() == counted.names(),
        "the committed figures are of {:?}, and counted were {:?}: `{UPDATE}` writes them anew",
        committed.names(),
        counted.names()
    );
    let (mut shown, mut slips) = (Vec::new(), Vec::new());
    let bound = if committed.compiler == counted.compiler {
        BOUND
    } else {
        shown.push(format!(
            "The figures are of {}, this is {}: across compilers the ratio may be up to {BOUND_ACROSS:.2}.",
            committed.compiler, counted.compiler
        ));
        BOUND_ACROSS
    };
    shown.push(format!("{:<16} {:>12} {:>12}  ratio", "", "instructions", "committed"));
    for ((name, now), before) in counted.counts.iter().zip(committed.counts.values()) {
        #[allow(clippy::cast_precision_loss, reason = "a ratio needs no more than 52 bits")]
        let ratio = *now as f64 / *before as f64;
        shown.push(format!(
            "{name:<16} {:>12} {:>12}  {ratio:.3}",
            grouped(*now),
            grouped(*before)
        ));
        if ratio > bound {
            slips.push(format!(
                "{name} takes {ratio:.2} of its committed instructions, and at most {bound:.2} are allowed: \
                 mend it, or commit what `{UPDATE}` writes and say why"
            ));
        } else if ratio < LOWERED {
            shown.push(format!("  The figure can be lowered: `{UPDATE}` writes it."));
        }
    }
    Ok(Verdict { shown, slips })
}

/// A number in groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(compiler: &str, counts: &[(&str, u64)]) -> Figures {
        let counts = counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Figures { compiler: compiler.to_owned(), counts }
    }

    #[test]
    fn figures_are_read_as_they_were_written() {
        let written = figures("rustc 1.95.0 for x", &[("one", 1), ("two", 12_345_678)]);
        assert!(written.to_text().contains("12_345_678"), "{}", written.to_text());
        assert_eq!(Figures::read(&written.to_text()).unwrap(), written);
        assert!(
            Figures::read("one 1\n").is_err() && Figures::read("compiler: x\none ?\n").is_err()
        );
    }

    #[test]
    fn a_slip_beyond_the_bound_is_named_and_one_below_it_passes() {
        let committed = figures("a", &[("one", 1_000_000), ("two", 1_000_000)]);
        let slips = |counts| compare(&committed, &figures("a", counts)).unwrap().slips;
        assert!(slips(&[("one", 1_099_000), ("two", 900_000)]).is_empty());
        let found = slips(&[("one", 1_000_000), ("two", 1_101_000)]);
        assert!(found.len() == 1 && found[0].starts_with("two takes 1.10 "), "{found:?}");
    }

    #[test]
    fn figures_of_another_compiler_are_held_to_a_wider_bound_and_that_is_said() {
        let committed = figures("old", &[("one", 1_000_000)]);
        let verdict = compare(&committed, &figures("new", &[("one", 1_400_000)])).unwrap();
        assert!(verdict.slips.is_empty());
        assert!(
            verdict.shown[0].contains("figures are of old, this is new"),
            "{:?}",
            verdict.shown
        );
        let verdict = compare(&committed, &figures("new", &[("one", 1_600_000)])).unwrap();
        assert_eq!(verdict.slips.len(), 1);
    }

    #[test]
    fn a_figure_that_has_become_too_high_is_told() {
        let committed = figures("a", &[("one", 1_000_000)]);
        let shown = |count| compare(&committed, &figures("a", &[("one", count)])).unwrap().shown;
        assert!(shown(800_000).concat().contains("can be lowered"));
        assert!(!shown(950_000).concat().contains("can be lowered"));
    }

    #[test]
    fn a_workload_without_a_figure_is_an_error() {
        let committed = figures("a", &[("one", 1)]);
        assert!(compare(&committed, &figures("a", &[("one", 1), ("two", 1)])).is_err());
        assert!(compare(&committed, &figures("a", &[])).is_err());
    }
}
