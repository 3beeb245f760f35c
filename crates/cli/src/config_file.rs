//! The settings file (TOML): the same settings as the command line, each under `[run]`. Every
//! mistake is found in one pass and told with its line; an unknown key is a mistake, because a
//! misspelt one would silently do nothing.

use crate::args;
use crate::run_settings::{Given, KEYS};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys of the file itself.
const TOP_KEYS: [&str; 2] = ["version", "run"];
/// More mistakes of one file are not told to people.
const MISTAKES_TOLD: usize = 5;
/// The only value of `version` so far.
const VERSION: &str = "1";

/// One mistake. Lines and columns count from 1; a column counts characters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mistake {
    /// Where it is.
    pub line: usize,
    /// Where in the line.
    pub column: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

/// Why a file gives no settings.
#[derive(Debug)]
pub enum Unusable {
    /// It cannot be read.
    Unreadable(std::io::Error),
    /// It has mistakes: at least one, in the order of their lines.
    Mistakes(Vec<Mistake>),
}

impl Unusable {
    /// The whole story in lines of `FILE:LINE:COLUMN: message`.
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

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Reads and checks `file`.
pub fn read(file: &Path) -> Result<Given, Unusable> {
    let text = std::fs::read_to_string(file).map_err(Unusable::Unreadable)?;
    parse(&text).map_err(Unusable::Mistakes)
}

/// Checks the text of a settings file; all mistakes are reported at once.
pub fn parse(text: &str) -> Result<Given, Vec<Mistake>> {
    let mut reader = Reader { text, mistakes: Vec::new() };
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        reader.mistake(error.span().map_or(0, |span| span.start), one_line(error.message()));
    }
    let mut settings = Given::default();
    // After a syntax error the recovered table is a guess: what it seems to say is not judged.
    if errors.is_empty() {
        reader.document(document.get_ref(), &mut settings);
    }
    let Reader { mut mistakes, .. } = reader;
    mistakes.sort_by_key(|m| (m.line, m.column));
    if mistakes.is_empty() { Ok(settings) } else { Err(mistakes) }
}

/// Reads the text of a file, and notes all mistakes.
pub struct Reader<'t> {
    text: &'t str,
    mistakes: Vec<Mistake>,
}

/// A value, and where it stands.
pub type Value<'i> = Spanned<DeValue<'i>>;

impl Reader<'_> {
    fn document(&mut self, table: &DeTable<'_>, settings: &mut Given) {
        for (key, value) in table.iter() {
            match key.get_ref().as_ref() {
                "version" => match value.get_ref() {
                    DeValue::Integer(number) if number.as_str() == VERSION => {}
                    DeValue::Integer(number) => self.mistake(
                        value.span().start,
                        format!("version {} is not known to this terrace, which reads version {VERSION}", number.as_str()),
                    ),
                    other => self.wrong_type("version", "the number 1", other, value.span().start),
                },
                "run" => match value.get_ref() {
                    DeValue::Table(run) => self.run_section(run, settings),
                    other => self.wrong_type("run", "a table, written [run]", other, value.span().start),
                },
                unknown if KEYS.contains(&unknown) => {
                    self.mistake(key.span().start, format!("`{unknown}` is outside its table: put it under [run]"));
                }
                unknown => self.unknown_key(unknown, "", &TOP_KEYS, key.span().start),
            }
        }
    }

    fn run_section(&mut self, table: &DeTable<'_>, settings: &mut Given) {
        for (key, value) in table.iter() {
            let name = key.get_ref().as_ref();
            if !settings.read(self, name, value) {
                self.unknown_key(name, " in [run]", KEYS, key.span().start);
            }
        }
    }

    /// The value of `key` if it is text that can be read as such a setting.
    pub fn text<T>(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let text = self.string(key, expected, value)?;
        self.valid(key, value, text.parse())
    }

    /// The value of `key` if it is a number, in quotes or not, that can be read as such a setting.
    pub fn number<T>(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let text = match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            _ => self.string(key, expected, value)?,
        };
        self.valid(key, value, text.parse())
    }

    /// The value of `key` if it is text that holds a valid list of tiers.
    pub fn tiers(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<String> {
        let text = self.string(key, expected, value)?;
        self.valid(key, value, args::tiers(text))
    }

    /// The value of `key` as a file name, if it is text and not empty.
    pub fn file(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<PathBuf> {
        let text = self.string(key, expected, value)?;
        if text.is_empty() {
            self.mistake(
                value.span().start,
                format!("`{key}` is empty: write a file name, or leave it out"),
            );
            return None;
        }
        Some(text.into())
    }

    fn string<'v>(&mut self, key: &str, expected: &str, value: &'v Value<'_>) -> Option<&'v str> {
        match value.get_ref() {
            DeValue::String(text) => Some(text),
            other => {
                self.wrong_type(key, expected, other, value.span().start);
                None
            }
        }
    }

    /// The value of `key` if it is a boolean.
    pub fn boolean(&mut self, key: &str, expected: &str, value: &Value<'_>) -> Option<bool> {
        match value.get_ref() {
            DeValue::Boolean(truth) => Some(*truth),
            other => {
                self.wrong_type(key, expected, other, value.span().start);
                None
            }
        }
    }

    fn valid<T, E: fmt::Display>(
        &mut self,
        key: &str,
        value: &Value<'_>,
        parsed: Result<T, E>,
    ) -> Option<T> {
        parsed
            .map_err(|error| {
                self.mistake(value.span().start, format!("bad value for `{key}`: {error}"))
            })
            .ok()
    }

    fn wrong_type(&mut self, key: &str, expected: &str, found: &DeValue<'_>, offset: usize) {
        self.mistake(
            offset,
            format!("`{key}` must be {expected}, not a value of type {}", found.type_str()),
        );
    }

    fn unknown_key(&mut self, key: &str, place: &str, known: &[&str], offset: usize) {
        let advice = match nearest(key, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        self.mistake(offset, format!("unknown key `{key}`{place}; {advice}"));
    }

    fn mistake(&mut self, offset: usize, message: String) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        self.mistakes.push(Mistake {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message,
        });
    }
}

/// The known key that differs from `key` by the fewest slips (a letter too many, too few, other, or
/// swapped), if they are no more than one in three letters.
fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let key = key.to_lowercase();
    known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&key, candidate), *candidate))
        .filter(|(slips, candidate)| *slips <= key.chars().count().max(candidate.len()) / 3)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Choice;
    use crate::wake::WakeLatency;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use terrace_pager::settings::{Allocator, ContextDepth, Dram, Eviction, HugePages, Zones};

    fn mistakes(text: &str) -> Vec<String> {
        parse(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_place_within_a_character_is_that_characters() {
        let mut reader = Reader { text: "a\né", mistakes: Vec::new() };
        reader.mistake("a\né".len() - 1, "here".into());
        assert_eq!(reader.mistakes[0].to_string(), "2:1: here");
    }

    #[test]
    fn a_full_file_is_read() {
        let text = "version = 1\n[run]\ndram = \"60%\"\nslowdown = \"2%\"\ntiers = \"dram,lz4\"\nobserve = true\nstrict = false\nevict = \"wp\"\npolicy = \"jenga\"\nsampler = \"none\"\nsampler_cost = \"0.5%\"\nhuge_pages = \"hot\"\nwake_latency = 20\nallocator = \"context\"\nzones = 64\ncontext_depth = \"height\"\nverify = true\nchildren = false\nreport = \"r.json\"\nreport_every = \"5m\"\nmoves = \"m.jsonl\"\n";
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
                moves: Some("m.jsonl".into()),
            })
        );
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
            [
                "2:1: unknown key `zzz` in [run]; known here: dram, slowdown, tiers, observe, strict, evict, policy, sampler, sampler_cost, huge_pages, wake_latency, allocator, zones, context_depth, verify, children, report, report_every, moves"
            ]
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
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

        /// Anything gives settings, or mistakes that can be looked up in it.
        #[test]
        fn any_text_is_settings_or_mistakes(
            text in prop_oneof![any::<String>(), vec(prop::sample::select(&PIECES[..]), 0..30).prop_map(|pieces| pieces.concat())],
        ) {
            if let Err(mistakes) = parse(&text) {
                prop_assert!(!mistakes.is_empty());
                for Mistake { line, column, message } in mistakes {
                    let longest = text.split('\n').nth(line - 1).map(|line| line.chars().count());
                    prop_assert!(longest.is_some_and(|longest| column <= longest + 1), "{line}:{column}: {message}");
                    prop_assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
                }
            }
        }

        /// What is written of settings (`terrace config show`) is read as the same settings.
        #[test]
        fn settings_written_are_settings_read(
            dram in prop_oneof![Just("unlimited".to_string()), (1u64..1 << 50).prop_map(|bytes| bytes.to_string()), (1u32..=100).prop_map(|p| format!("{p}%"))],
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
            let (observe, strict, verify, children) = (Some(observe), Some(strict), Some(verify), Some(children));
            let report = Some(report.into());
            prop_assert_eq!(read, Given { dram: Some(dram), observe, strict, verify, children, report, ..Given::default() });
        }
    }
}
