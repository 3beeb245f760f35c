//! The pages of docs/reference that are made from the program itself, so that they cannot differ
//! from it: a page for each command, the settings, and the report with its JSON schema.

use crate::args::Arguments;
use crate::run::settings::{Given, Values};
use crate::run_report::Report;
use clap::{Arg, Command, CommandFactory};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Columns of a line of text, at most.
const COLUMNS: usize = 100;
const MADE: &str = "<!-- Made by `make reference` from the program; edit it there. -->\n\n";
/// The name of the report's JSON schema.
pub const SCHEMA: &str = "report.schema.json";

/// All pages: their names and texts.
pub fn pages() -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut commands = Vec::new();
    command_pages(&command, &mut commands);
    pages.insert("terrace.md".into(), overview(&command, &commands));
    pages.extend(commands.into_iter().map(|(name, _, text)| (name + ".md", text)));
    pages.insert("settings.md".into(), settings(&command));
    pages.insert("exit-statuses.md".into(), exit_statuses());
    pages.insert("formats.md".into(), formats());
    let schema = schema();
    pages.insert("report.md".into(), report(&schema));
    pages.insert(SCHEMA.into(), format!("{schema:#}\n"));
    pages
}

/// Commands, their exit statuses, and when that is.
const EXIT_STATUSES: [(&str, &str, &str); 15] = [
    ("`terrace run`, `terrace record`", "the program's own", "it was started"),
    ("", "dies of the same signal", "a signal killed the program"),
    ("", OUR_FAULT_TEXT, "Terrace itself failed, or refused (`--strict`)"),
    ("", "126", "the program was found and could not be executed"),
    ("", "127", "the program was not found"),
    ("`terrace doctor`", "0, 1", "pages can be evicted here, or cannot"),
    ("`terrace config check`", "0, 1", "the file is right, or has errors"),
    (
        "`terrace report`, and each of its verbs",
        WRONG_TEXT,
        "the file is damaged, cut off, or of another kind",
    ),
    ("`terrace load kv`", "1", "an answer was missing, wrong or refused"),
    ("`terrace load memory`", "1", "something else came back than was written"),
    ("`terrace sim`", WRONG_TEXT, "a recording is damaged or cut off, or the file is none"),
    ("`terrace solver`", "1", "nothing within the bound and the limits was found"),
    (
        "`terrace attach`, `terrace detach`",
        OUR_FAULT_TEXT,
        "at least one of the processes was refused",
    ),
    ("every command", "0", "it did what was asked"),
    (
        "every command",
        OUR_FAULT_TEXT,
        "the arguments make no sense, or a file cannot be read or written",
    ),
];
const OUR_FAULT_TEXT: &str = "125";
const WRONG_TEXT: &str = "1";

fn exit_statuses() -> String {
    let mut page = format!("# Exit statuses\n\n{MADE}| command | status | when |\n|---|---|---|\n");
    for (command, status, when) in EXIT_STATUSES {
        let _ = writeln!(page, "| {command} | {status} | {when} |");
    }
    page += "\nOf a damaged recording, `terrace report` and `terrace sim` still show what comes before the damage.\n\
             A reader that closes the pipe (`| head`) is no error.\n\n";
    page += "In a JSON report `exit_status` is 128 + N where signal N killed the program, and `null` while it\nruns.\n";
    page
}

/// What files of Terrace's begin with.
fn formats() -> String {
    let mut page = format!("# Formats\n\n{MADE}");
    page += "Recordings begin with seven letters and a byte, the version. [Recordings, byte by\n\
             byte](../trace-format.md) has the rest. `terrace report FILE` says what a file holds.\n\n\
             | begins with | version | it |\n|---|---|---|\n";
    for (magic, holds, _) in terrace_trace::KINDS {
        let letters = String::from_utf8_lossy(&magic[..7]);
        let _ = writeln!(page, "| `{letters}` | {} | {holds} |", magic[7]);
    }
    page += "\nA report is JSON; its [schema](report.schema.json) has every key.\n";
    page
}

/// The JSON schema of the report of `terrace run`.
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(Report).to_value();
    flatten_text(&mut schema);
    schema
}

/// Descriptions on one line each, as they are wrapped where they are shown.
fn flatten_text(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "description" => *text = one_line(text),
                    other => flatten_text(other),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(flatten_text),
        _ => {}
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Adds name, summary and page of each command below this one that does something.
fn command_pages(command: &Command, pages: &mut Vec<(String, String, String)>) {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let name = verb.get_bin_name().unwrap_or_default();
        let about = verb.get_about().map(|about| one_line(&about.to_string())).unwrap_or_default();
        pages.push((name.replace(' ', "-"), about, command_page(name, verb)));
        command_pages(verb, pages);
    }
}

fn command_page(name: &str, verb: &Command) -> String {
    let mut page = format!("# {name}\n\n{MADE}");
    let about = verb.get_long_about().or(verb.get_about());
    for paragraph in about.map(ToString::to_string).unwrap_or_default().split("\n\n") {
        let end = if paragraph.ends_with('.') { "" } else { "." };
        let _ = write!(page, "{}\n\n", wrapped(&format!("{}{end}", one_line(paragraph)), ""));
    }
    let usage = verb.clone().render_usage().to_string();
    let _ = write!(page, "```text\n{}\n```\n", usage.trim_start_matches("Usage: "));
    let shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help");
    let (values, options): (Vec<&Arg>, Vec<&Arg>) =
        verb.get_arguments().filter(shown).partition(|arg| arg.is_positional());
    for (title, arguments) in [("Arguments", values), ("Options", options)] {
        if !arguments.is_empty() {
            let _ = write!(page, "\n## {title}\n\n");
        }
        arguments.into_iter().for_each(|argument| page.push_str(&item(argument)));
    }
    if let Some(after) = verb.get_after_long_help() {
        let _ = write!(page, "\n## More\n\n```text\n{}\n```\n", after.to_string().trim_end());
    }
    page
}

/// An argument as an item of a list.
fn item(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help());
    let mut help = help.map(|help| one_line(&help.to_string())).unwrap_or_default();
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|_| !argument.is_hide_possible_values_set() && argument.get_action().takes_values())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() {
        let _ = write!(help, " (one of {})", values.join(", "));
    }
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() && argument.get_action().takes_values() {
        let _ = write!(help, " [default: {}]", defaults.join(","));
    }
    wrapped(&format!("- **`{argument}`**: {help}"), "  ") + "\n"
}

fn overview(command: &Command, commands: &[(String, String, String)]) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page =
        format!("# terrace\n\n{MADE}{about}.\n\n| command | what it does |\n|---|---|\n");
    for (name, about, _) in commands {
        let _ = writeln!(page, "| [{}]({name}.md) | {about} |", name.replace('-', " "));
    }
    page += "\n`terrace COMMAND --help` says the same, and `man terrace-COMMAND` where it is installed.\n";
    page
}

fn settings(command: &Command) -> String {
    let run = command.find_subcommand("run").expect("there is one");
    let defaults = Values::merge(Given::default(), Given::default()).lines();
    let mut page = format!("# Settings\n\n{MADE}");
    page += &wrapped(
        "Each setting is a flag of `terrace run`, and a key in the table `[run]` of the file of \
         `--config`. The command line goes before the file, and the file before the default.",
        "",
    );
    page += "\n";
    for line in defaults {
        let flag = run.get_arguments().find(|argument| argument.get_id() == line.key);
        let flag = flag.expect("each key has a flag");
        let default = line.toml.map_or("none".into(), |toml| format!("`{} = {toml}`", line.key));
        let help = flag.get_help().map(|help| one_line(&help.to_string())).unwrap_or_default();
        let help = help.split(" [default").next().unwrap_or_default();
        let _ = write!(
            page,
            "\n## {}\n\nFlag `{flag}`. Default: {default}.\n\n{}\n",
            line.key,
            wrapped(&format!("{help}."), "")
        );
    }
    page
}

fn report(schema: &Value) -> String {
    let mut page = format!("# The report\n\n{MADE}");
    page += &wrapped(
        &format!(
            "`terrace run --report FILE.json` writes this. [{SCHEMA}]({SCHEMA}) is the same as a \
             JSON schema; all tests compare their reports with it."
        ),
        "",
    );
    page += "\n\n";
    fields(&mut page, schema);
    let definitions = schema["$defs"].as_object().into_iter().flatten();
    for (name, definition) in definitions {
        let _ = write!(page, "\n## {name}\n\n");
        fields(&mut page, definition);
    }
    page
}

/// What an object is, and a line for each of its fields.
fn fields(page: &mut String, object: &Value) {
    let text = |value: &Value| value["description"].as_str().unwrap_or_default().to_string();
    let _ = write!(page, "{}\n\n", wrapped(&text(object), ""));
    for (name, field) in object["properties"].as_object().into_iter().flatten() {
        let item = format!("- **`{name}`** ({}): {}", type_of(field), text(field));
        let _ = writeln!(page, "{}", wrapped(&item, "  "));
    }
}

/// The type of a field, in words.
fn type_of(field: &Value) -> String {
    if let Some(name) = field["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(choices) = field["anyOf"].as_array() {
        return choices.iter().map(type_of).collect::<Vec<_>>().join(" or ");
    }
    match &field["type"] {
        Value::Array(types) => {
            types.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or ")
        }
        Value::String(name) if name == "array" => format!("array of {}", type_of(&field["items"])),
        Value::String(name) if name == "object" && field["additionalProperties"].is_object() => {
            format!("{} by name", type_of(&field["additionalProperties"]))
        }
        Value::String(name) => name.clone(),
        _ => "any".into(),
    }
}

/// The text in lines of at most [`COLUMNS`], all but the first with `indent` before them.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(format!("{indent}{word}"));
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_pages_in_docs_reference_are_what_the_program_says() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
        for (name, text) in pages() {
            let is = fs::read_to_string(directory.join(&name)).unwrap_or_default();
            assert!(is == text, "docs/reference/{name} is not up to date: run `make reference`");
        }
    }

    #[test]
    fn statuses_are_those_of_the_program() {
        assert_eq!(OUR_FAULT_TEXT, crate::OUR_FAULT.to_string());
        assert_eq!(WRONG_TEXT, crate::WRONG_CONTENTS.to_string());
    }

    #[test]
    fn every_field_of_the_report_is_explained() {
        let schema = schema();
        let objects = std::iter::once(&schema)
            .chain(schema["$defs"].as_object().into_iter().flat_map(|all| all.values()));
        for (name, field) in
            objects.flat_map(|object| object["properties"].as_object().into_iter().flatten())
        {
            assert!(field["description"].is_string(), "{name} has no description");
        }
    }

    /// Lines of the help under `Examples:` that are commands of ours.
    fn examples(command: &clap::Command, found: &mut Vec<String>) {
        let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.lines().skip_while(|line| !line.starts_with("Example"));
        found.extend(lines.filter(|line| line.starts_with("  terrace ")).map(str::to_owned));
        command.get_subcommands().for_each(|verb| examples(verb, found));
    }

    #[test]
    fn the_examples_of_the_help_are_understood() {
        use clap::{CommandFactory as _, Parser as _};
        let mut found = Vec::new();
        examples(&crate::args::Arguments::command(), &mut found);
        assert!(found.len() > 15, "{found:#?}");
        for command in found.iter().flat_map(|line| line.split(" && ")) {
            // What a shell puts in its place is a process ID.
            let mut words = Vec::new();
            let mut rest = command;
            while let Some((before, after)) = rest.split_once("$(pidof ") {
                words.extend(before.split_whitespace());
                words.push("1");
                rest = after.split_once(')').expect("it ends").1;
            }
            words.extend(rest.split_whitespace());
            let parsed = crate::args::Arguments::try_parse_from(words);
            assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
        }
    }
}
