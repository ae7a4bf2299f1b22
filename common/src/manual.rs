//! The manual page of a program: one page that has all of its commands with all of their options.

use std::io::{self, Write};

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Prints the manual page of `command`.
///
/// # Errors
/// Where it cannot be printed.
pub fn print(mut command: Command, out: &mut dyn Write) -> io::Result<()> {
    command.build();
    let man = Man::new(command.clone());
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    let commands: Vec<&Command> = command.get_subcommands().filter(|sub| is_shown(sub)).collect();
    if !commands.is_empty() {
        Roff::new().control("SH", ["COMMANDS"]).to_writer(out)?;
    }
    for (at, sub) in commands.iter().enumerate() {
        section(sub, &commands[..at], out)?;
    }
    if let Some(notes) = command.get_after_help() {
        Roff::new().control("SH", ["NOTES"]).to_writer(out)?;
        text(&notes.to_string(), out)?;
    }
    man.render_version_section(out)
}

fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// A command; what an `earlier` one has to say in the same words is not said again.
fn section(command: &Command, earlier: &[&Command], out: &mut dyn Write) -> io::Result<()> {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").split_whitespace().collect::<Vec<_>>().join(" ");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    Roff::new().control("SS", [name]).text([roman(about)]).to_writer(out)?;
    Roff::new().control("PP", []).text([bold(usage)]).to_writer(out)?;

    let alike = earlier.iter().find(|other| includes(command, other));
    if let Some(earlier_one) = alike {
        let other = earlier_one.get_bin_name().unwrap_or(earlier_one.get_name());
        let has_more = options(command).count() > options(earlier_one).count();
        let rest = if has_more { "; and" } else { "." };
        let told = [roman("The options of "), bold(other), roman(rest)];
        Roff::new().control("PP", []).text(told).to_writer(out)?;
    }
    let known = |arg: &Arg| alike.is_some_and(|other| options(other).any(|theirs| is_same(arg, theirs)));
    let is_own = |arg: &&Arg| options(command).any(|own| own.get_id() == arg.get_id()) && !known(arg);
    let others = command.get_arguments().filter(|arg| !is_own(arg)).map(Arg::get_id);
    let own = others.fold(command.clone(), |own, other| own.mut_arg(other, |arg| arg.hide(true)));
    let mut rendered = Vec::new();
    Man::new(own).render_options_section(&mut rendered)?;
    // It lies within the section of the command.
    let rendered = String::from_utf8_lossy(&rendered).replace(".SH OPTIONS\n", "");
    out.write_all(rendered.as_bytes())?;

    let notes = command.get_after_help().map(ToString::to_string);
    let is_said = earlier.iter().any(|other| other.get_after_help().map(ToString::to_string) == notes);
    match notes {
        Some(notes) if !is_said => {
            Roff::new().control("PP", []).to_writer(out)?;
            text(&notes, out)
        }
        _ => Ok(()),
    }
}

/// The options of its own.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set() && arg.get_id() != "help")
}

fn is_same(one: &Arg, other: &Arg) -> bool {
    let help = |arg: &Arg| arg.get_help().map(ToString::to_string);
    one.get_id() == other.get_id() && help(one) == help(other)
}

/// Whether `command` has all options of `other`, and those are worth a word.
fn includes(command: &Command, other: &Command) -> bool {
    const MANY: usize = 5;
    options(other).count() >= MANY
        && options(other).all(|theirs| options(command).any(|ours| is_same(ours, theirs)))
}

/// Running text, in which indented lines stay as they are.
fn text(text: &str, out: &mut dyn Write) -> io::Result<()> {
    let (mut page, mut is_filled) = (Roff::new(), true);
    // The last one ends what is indented.
    for line in text.lines().chain([""]) {
        let fills = !line.starts_with(' ');
        if fills != is_filled {
            page.control(if fills { "fi" } else { "nf" }, []);
            is_filled = fills;
        }
        match line {
            "" => page.control("PP", []),
            line => page.text([roman(line)]),
        };
    }
    page.to_writer(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> String {
        let flag = |name: &'static str| Arg::new(name).long(name).help(format!("what {name} does"));
        let five = || ["a", "b", "c", "d", "e"].map(flag);
        let command = Command::new("frog")
            .about("It croaks")
            .version("1")
            .arg(flag("loud").global(true))
            .subcommand(Command::new("jump").about("Jumps").args(five()))
            .subcommand(Command::new("dive").about("Dives").args(five()).arg(flag("deep")))
            .subcommand(Command::new("secret").hide(true))
            .after_help("Of frogs.\n\nExamples:\n  frog jump     far\nThe end.");
        let mut page = Vec::new();
        print(command, &mut page).unwrap();
        String::from_utf8(page).unwrap()
    }

    #[test]
    fn every_command_has_its_options_and_the_same_ones_are_told_once() {
        let page = page();
        for (part, times) in [
            (".SS \"frog jump\"", 1),
            (".SS \"frog dive\"", 1),
            ("what c does", 1),
            ("what deep does", 1),
            ("what loud does", 1),
            ("The options of", 1),
            ("secret", 0),
            (".SH OPTIONS", 1),
        ] {
            assert_eq!(page.matches(part).count(), times, "{part} in {page}");
        }
    }

    #[test]
    fn examples_keep_their_lines() {
        assert!(page().contains(".nf\n  frog jump     far\n.fi\nThe end."), "{}", page());
    }
}
