//! The settings file (TOML): the same settings as the command line, each under `[run]`. Every
//! mistake is found in one pass and told with its line; an unknown key is a mistake, because a
//! misspelt one would silently do nothing.

use crate::config::reader::{Mistake, Reader, one_line};
use crate::run::settings::{Given, KEYS};
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// The keys of the file itself.
const TOP_KEYS: [&str; 2] = ["version", "run"];
/// Most mistakes of one file that are told to people.
const MISTAKES_TOLD: usize = 5;
/// The only value of `version` so far.
const VERSION: &str = "1";

/// Why a file gives no settings.
#[derive(Debug)]
pub enum Unusable {
    /// The file cannot be read.
    Unreadable(std::io::Error),
    /// The file has mistakes: at least one, in the order of their lines.
    Mistakes(Vec<Mistake>),
}

impl Unusable {
    /// All that is wrong, in lines of `FILE:LINE:COLUMN: message`.
    pub fn describe(&self, file: &Path) -> String {
        match self {
            Unusable::Unreadable(error) => {
                format!(
                    "{}: cannot read the settings: {error}; check the name and its permissions",
                    file.display()
                )
            }
            Unusable::Mistakes(mistakes) => {
                let told = mistakes.iter().take(MISTAKES_TOLD);
                let mut lines: Vec<String> =
                    told.map(|mistake| format!("{}:{mistake}", file.display())).collect();
                if mistakes.len() > MISTAKES_TOLD {
                    let more = mistakes.len() - MISTAKES_TOLD;
                    lines.push(format!("{}: and {more} more mistakes", file.display()));
                }
                lines.join("\nterrace: ")
            }
        }
    }
}

/// Reads and checks `file`.
pub fn read(file: &Path) -> Result<Given, Unusable> {
    let text = std::fs::read_to_string(file).map_err(Unusable::Unreadable)?;
    parse(&text).map_err(Unusable::Mistakes)
}

/// Checks the text of a settings file; all mistakes are reported at once.
pub fn parse(text: &str) -> Result<Given, Vec<Mistake>> {
    let mut reader = Reader::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        reader.mistake(error.span().map_or(0, |span| span.start), one_line(error.message()));
    }
    let mut settings = Given::default();
    // After a syntax error the recovered table is a guess: what it seems to say is not judged.
    if errors.is_empty() {
        self::document(&mut reader, document.get_ref(), &mut settings);
    }
    let mistakes = reader.mistakes();
    if mistakes.is_empty() { Ok(settings) } else { Err(mistakes) }
}

fn document(reader: &mut Reader<'_>, table: &DeTable<'_>, settings: &mut Given) {
    for (key, value) in table.iter() {
        match key.get_ref().as_ref() {
            "version" => match value.get_ref() {
                DeValue::Integer(number) if number.as_str() == VERSION => {}
                DeValue::Integer(number) => reader.mistake(
                    value.span().start,
                    format!(
                        "version {} is not known to this terrace, which reads version {VERSION}",
                        number.as_str()
                    ),
                ),
                other => reader.wrong_type("version", "the number 1", other, value.span().start),
            },
            "run" => match value.get_ref() {
                DeValue::Table(run) => run_section(reader, run, settings),
                other => {
                    reader.wrong_type("run", "a table, written [run]", other, value.span().start)
                }
            },
            unknown if KEYS.contains(&unknown) => {
                reader.mistake(
                    key.span().start,
                    format!("`{unknown}` is outside its table: put it under [run]"),
                );
            }
            unknown => reader.unknown_key(unknown, "", &TOP_KEYS, key.span().start),
        }
    }
}

fn run_section(reader: &mut Reader<'_>, table: &DeTable<'_>, settings: &mut Given) {
    for (key, value) in table.iter() {
        let name = key.get_ref().as_ref();
        if !settings.read(reader, name, value) {
            reader.unknown_key(name, " in [run]", KEYS, key.span().start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sampling::Choice;
    use crate::run::wake::WakeLatency;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use terrace_control::settings::{Allocator, ContextDepth, Dram, Eviction, HugePages, Zones};

    fn mistakes(text: &str) -> Vec<String> {
        parse(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_place_within_a_character_is_that_characters() {
        let mut reader = Reader::new("a\né");
        reader.mistake("a\né".len() - 1, "here".into());
        assert_eq!(reader.mistakes()[0].to_string(), "2:1: here");
    }

    #[test]
    fn a_full_file_is_read() {
        let text = "version = 1\n[run]\ndram = \"60%\"\nslowdown = \"2%\"\ntiers = \"dram,lz4\"\nobserve = true\nstrict = false\nevict = \"wp\"\npolicy = \"jenga\"\nplacement = \"tierscape\"\nknob = 0.25\nwindow = \"10s\"\nsampler = \"none\"\nsampler_cost = \"0.5%\"\nhuge_pages = \"hot\"\nwake_latency = 20\nallocator = \"context\"\nzones = 64\ncontext_depth = \"height\"\nverify = true\nchildren = false\nreport = \"r.json\"\nreport_every = \"5m\"\n";
        assert_eq!(
            parse(text),
            Ok(Given {
                dram: Some(Dram::Share(0.6)),
                slowdown: "2%".parse().ok(),
                tiers: Some("dram,lz4".into()),
                observe: Some(true),
                strict: Some(false),
                evict: Some(Eviction::WriteProtect),
                policy: "jenga".parse().ok(),
                placement: "tierscape".parse().ok(),
                knob: "0.25".parse().ok(),
                window: "10s".parse().ok(),
                sampler: Some(Choice::None),
                sampler_cost: "0.5%".parse().ok(),
                huge_pages: Some(HugePages::Hot),
                wake_latency: Some(WakeLatency::Within(20)),
                allocator: Some(Allocator::Context),
                zones: Some(Zones(64)),
                context_depth: Some(ContextDepth(0)),
                verify: Some(true),
                children: Some(false),
                report: Some("r.json".into()),
                report_every: "300s".parse().ok(),
                ..Given::default()
            })
        );
        let moves = parse("[run]\nmoves = \"m.jsonl\"\n").unwrap().moves;
        assert_eq!(moves, Some("m.jsonl".into()));
        assert_eq!(parse(""), Ok(Given::default()));
    }

    #[test]
    fn an_unknown_key_is_told_with_its_line_and_the_nearest_match() {
        assert_eq!(
            mistakes("version = 1\n\n[run]\ndrma = \"60%\"\n"),
            ["4:1: unknown key `drma` in [run]; did you mean `dram`?"]
        );
        assert_eq!(mistakes("[rn]\n"), ["1:2: unknown key `rn`; did you mean `run`?"]);
        assert_eq!(
            mistakes("[run]\nzzz = 1"),
            [format!("2:1: unknown key `zzz` in [run]; known here: {}", KEYS.join(", "))]
        );
        assert_eq!(
            mistakes("observe = true\n"),
            ["1:1: `observe` is outside its table: put it under [run]"]
        );
    }

    #[test]
    fn wrong_types_and_bad_values_are_told_with_their_line() {
        let found = mistakes(
            "version = 2\n[run]\ndram = \"0%\"\nobserve = \"yes\"\nstrict = 1\ntiers = \"dram,nonsense\"\nreport = \"\"\n",
        );
        assert_eq!(found.len(), 6, "{found:?}");
        let starts = [
            "1:11: version 2",
            "3:8: bad value for `dram`",
            "4:11: `observe`",
            "5:10: `strict`",
            "6:9: bad value for `tiers`",
            "7:10: `report`",
        ];
        for (text, start) in found.iter().zip(starts) {
            assert!(text.starts_with(start), "{text} should start with {start}");
            assert!(!text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn syntax_errors_and_duplicates_have_a_line() {
        assert!(mistakes("[run]\ndram = \n")[0].starts_with("2:"));
        assert!(mistakes("[run]\nstrict = true\nstrict = true\n")[0].starts_with("3:"));
        assert!(!mistakes("\u{fffd}[[[").is_empty());
    }

    /// Pieces of settings files, right and wrong.
    const PIECES: [&str; 24] = [
        "[run]",
        "[run",
        "run",
        "version",
        "dram",
        "tiers",
        "observe",
        "strict",
        "verify",
        "report",
        "=",
        " = ",
        "1",
        "true",
        "\"60%\"",
        "\"dram,lz4\"",
        "\"",
        "\"\"\"",
        "\n",
        "\n\n",
        "#",
        ".",
        "{",
        "\u{fffd}é",
    ];

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::with_cases(512)
        })]

        /// Anything gives settings, or mistakes that can be looked up in it.
        #[test]
        fn any_text_is_settings_or_mistakes(
            text in prop_oneof![
                any::<String>(),
                vec(prop::sample::select(&PIECES[..]), 0..30).prop_map(|pieces| pieces.concat()),
            ],
        ) {
            if let Err(mistakes) = parse(&text) {
                prop_assert!(!mistakes.is_empty());
                for Mistake { line, column, message } in mistakes {
                    let longest = text.split('\n').nth(line - 1).map(|line| line.chars().count());
                    prop_assert!(
                        longest.is_some_and(|longest| column <= longest + 1),
                        "{line}:{column}: {message}",
                    );
                    prop_assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
                }
            }
        }

        /// What is written of settings (`terrace config show`) is read as the same settings.
        #[test]
        fn settings_written_are_settings_read(
            dram in prop_oneof![
                Just("unlimited".to_string()),
                (1u64..1 << 50).prop_map(|bytes| bytes.to_string()),
                (1u32..=100).prop_map(|p| format!("{p}%")),
            ],
            observe in any::<bool>(),
            strict in any::<bool>(),
            verify in any::<bool>(),
            children in any::<bool>(),
            report in "[^\u{0}]{1,40}",
        ) {
            let dram: Dram = dram.parse().unwrap();
            let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
            let text = format!(
                "version = 1\n[run]\ndram = {}\nobserve = {observe}\nstrict = {strict}\nverify = {verify}\nchildren = {children}\nreport = {}\n",
                quoted(&dram.to_string()),
                quoted(&report),
            );
            let read = parse(&text).unwrap();
            let (observe, strict, verify, children) =
                (Some(observe), Some(strict), Some(verify), Some(children));
            let report = Some(report.into());
            prop_assert_eq!(
                read,
                Given {
                    dram: Some(dram), observe, strict, verify, children, report, ..Given::default()
                },
            );
        }
    }
}
