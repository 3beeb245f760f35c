//! The settings of a run, each in one row: its flag with the help text, its key in a file of
//! settings, its default, and how it is written. What may be said of them on the command line
//! ([`Given`], for clap), in a file (also [`Given`]), what is in force ([`Values`]) and what
//! `terrace config show` prints all follow from the rows.

use crate::args;
use crate::config_file::{Reader, Value};
use crate::effective::{Origin, choose};
use crate::interim::Every;
use crate::sampling::{Choice, Cost};
use crate::slowdown::{Target, Wanted};
use crate::wake::WakeLatency;
use clap::Args;
use clap::builder::{BoolishValueParser, TypedValueParser as _};
use serde_json::json;
use std::path::PathBuf;
use terrace_pager::settings::{
    Allocator, ContextDepth, Dram, Eviction, HugePages, Policy, Settings, Stress, Zones,
};

/// How a value is shown: as TOML, and as JSON.
trait Shown {
    /// `None` where there is none.
    fn toml(&self) -> Option<String>;
    fn json(&self) -> serde_json::Value;
}

macro_rules! shown_as_text {
    ($($type:ty)*) => {$(
        impl Shown for $type {
            fn toml(&self) -> Option<String> {
                Some(toml::Value::String(self.to_string()).to_string())
            }

            fn json(&self) -> serde_json::Value {
                self.to_string().into()
            }
        }
    )*};
}

shown_as_text! {
    Dram Wanted String Eviction Policy Choice Cost HugePages WakeLatency Allocator ContextDepth
}

impl Shown for bool {
    fn toml(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn json(&self) -> serde_json::Value {
        (*self).into()
    }
}

impl Shown for Zones {
    fn toml(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn json(&self) -> serde_json::Value {
        json!(self.0)
    }
}

impl Shown for Option<Every> {
    fn toml(&self) -> Option<String> {
        self.and_then(|every| every.to_string().toml())
    }

    fn json(&self) -> serde_json::Value {
        json!(self.map(|every| every.to_string()))
    }
}

impl Shown for Option<PathBuf> {
    fn toml(&self) -> Option<String> {
        self.as_ref().and_then(|path| path.to_string_lossy().into_owned().toml())
    }

    fn json(&self) -> serde_json::Value {
        json!(self.as_ref().map(|path| path.to_string_lossy()))
    }
}

/// One setting in force, for people and programs.
pub struct Line {
    /// Its key.
    pub key: &'static str,
    /// Its value as TOML; `None` where it has none.
    pub toml: Option<String>,
    /// Its value as JSON.
    pub json: serde_json::Value,
    /// Where it comes from.
    pub origin: Origin,
}

/// A row is `key: TYPE, default WHERE, file KIND "what is expected"`. `WHERE` is `library` (its
/// default, and the library is told), `none` (nothing, unless it is given) or an expression in
/// parentheses; `KIND` is a function of [`Reader`]'s.
macro_rules! run_settings {
    (@type none $type:ty) => { Option<$type> };
    (@type $where:tt $type:ty) => { $type };
    (@default library $key:ident) => { Settings::default().$key };
    (@default none $key:ident) => { None };
    (@default ($default:expr) $key:ident) => { $default };
    (@given none $given:expr) => { $given.map(Some) };
    (@given $where:tt $given:expr) => { $given };
    (@tell library $key:ident $from:ident $settings:ident) => {
        $settings.$key = $from.$key.clone();
    };
    (@tell $where:tt $key:ident $from:ident $settings:ident) => {};
    ($(
        $(#[$about:meta])*
        $key:ident: $type:ty, default $where:tt, file $kind:ident $expected:literal;
    )*) => {
        // What is said of each setting, on the command line or in a file; `None` of the others.
        // (Documentation here would be the command's.)
        #[derive(Args, Clone, Debug, Default, PartialEq)]
        pub struct Given {
            $($(#[$about])* pub $key: Option<$type>,)*
        }

        /// The settings in force, and where each comes from.
        #[derive(Clone, Debug)]
        pub struct Values {
            $(pub $key: run_settings!(@type $where $type),)*
            origins: Vec<Origin>,
        }

        /// The keys of a file's table `[run]`.
        pub const KEYS: &[&str] = &[$(stringify!($key)),*];

        impl Given {
            /// Takes the value of a key of the file; false if there is no such key.
            pub fn read(&mut self, reader: &mut Reader<'_>, key: &str, value: &Value<'_>) -> bool {
                match key {
                    $(stringify!($key) => self.$key = reader.$kind(key, $expected, value),)*
                    _ => return false,
                }
                true
            }
        }

        impl Values {
            /// The command line goes before the file, and that before the defaults.
            pub fn merge(flags: Given, file: Given) -> Values {
                let mut origins = Vec::new();
                $(let $key = choose(
                    run_settings!(@given $where flags.$key),
                    run_settings!(@given $where file.$key),
                    run_settings!(@default $where $key),
                    &mut origins,
                );)*
                Values { $($key,)* origins }
            }

            /// What the library is told.
            pub fn settings(&self) -> Settings {
                let mut settings = Settings::default();
                $(run_settings!(@tell $where $key self settings);)*
                settings
            }

            /// All of them, in the order of the rows.
            pub fn lines(&self) -> Vec<Line> {
                let mut origins = self.origins.iter();
                vec![$(Line {
                    key: stringify!($key),
                    toml: self.$key.toml(),
                    json: self.$key.json(),
                    origin: *origins.next().expect("one for each"),
                }),*]
            }
        }
    };
}

run_settings! {
    /// The limit for the managed memory of all processes together in DRAM: a size (512M, 4G:
    /// powers of 1024), a share of what the program has touched at most (60%), or `unlimited`
    /// [default: unlimited]
    #[arg(long, value_name = "SIZE|PCT", allow_hyphen_values = true)]
    dram: Dram, default library, file text "a string such as \"60%\" or \"4G\"";

    /// Take as little memory as costs no more than this slowdown (2%): once memory has stopped
    /// growing it is limited, more and more while less is lost and less where more is. Beside
    /// --dram, whichever allows less. auto: 2% where nothing is said of --dram, else off
    /// [default: auto]
    #[arg(long, value_name = "PCT|auto|off")]
    slowdown: Wanted, default (Wanted::Auto), file text "a string such as \"2%\", \"auto\" or \"off\"";

    /// The tiers, fastest first: dram, then codecs as codec[:level][/pool][@medium], where the
    /// medium is dram or file:/DIRECTORY [default: dram,lz4,zstd:1]
    #[arg(long, value_name = "LIST", value_parser = args::tiers)]
    tiers: String, default library, file tiers "a string such as \"dram,lz4,zstd:1\"";

    /// Measure and report, move nothing
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    observe: bool, default library, file boolean "true or false (without quotes)";

    /// Refuse to run (exit status 125) where the program's memory cannot be managed, instead of
    /// running it unmanaged
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    strict: bool, default library, file boolean "true or false (without quotes)";

    /// How pages leave the page table: move (UFFDIO_MOVE, Linux 6.8), or wp (write-protect and
    /// discard, Linux 5.7; not beside O_DIRECT, io_uring, VFIO or RDMA: where one is seen,
    /// nothing more is evicted) [default: move]
    #[arg(long, value_name = "move|wp")]
    evict: Eviction, default library, file text "\"move\" or \"wp\"";

    /// Policy that chooses what leaves DRAM: terrace (ours, by faults, and by samples if there are
    /// any), faults (by faults alone), or the published jenga, memtis, memtis-qc [default: terrace]
    #[arg(long, value_name = "NAME")]
    policy: Policy, default library, file text "a name such as \"terrace\"";

    /// What tells where the program waits for memory: pebs or ibs (processors that sample
    /// accesses), clock (perf events by the clock), timer (signals of the program's own, where
    /// perf events are forbidden), none (faults only), or auto: the best of the first three
    /// that this machine has, for policies that need it (jenga, memtis, memtis-qc) and for far
    /// memory [default: auto]
    #[arg(long, value_name = "NAME")]
    sampler: Choice, default (Choice::default()), file text "\"auto\", \"pebs\", \"ibs\", \"clock\", \"timer\" or \"none\"";

    /// What sampling may cost in all, interrupts included, as a share of one CPU (0.01% to 100%);
    /// after a change of what is hot three times as much for some seconds [default: 1%]
    #[arg(long, value_name = "PCT")]
    sampler_cost: Cost, default (Cost::default()), file text "a share of a CPU such as \"1%\"";

    /// Which regions get huge pages: off (none), or hot (those that samples call hot for some
    /// seconds, while all of their pages are in DRAM; they are split before a page leaves)
    /// [default: off]
    #[arg(long, value_name = "off|hot")]
    huge_pages: HugePages, default library, file text "\"off\" or \"hot\"";

    /// While pages come back by faults, let idle CPUs wake within so many µs, all of the machine's
    /// (0: they poll instead of sleeping): whoever faults waits for a handler on one.
    /// Takes root, and costs power [default: off]
    #[arg(long, value_name = "off|US")]
    wake_latency: WakeLatency, default (WakeLatency::Off), file number "\"off\" or a number of µs such as 0";

    /// How objects lie in memory: size (by size, as jemalloc has them), context (those below 3.5
    /// KiB by who allocates them, then by size), or system (the program's own allocator; then
    /// only mappings of 256 KiB and more are managed) [default: size]
    #[arg(long, value_name = "context|size|system")]
    allocator: Allocator, default library, file text "\"size\", \"context\" or \"system\"";

    /// Groups into which --allocator context sorts who allocates: 1 to 255 [default: 32]
    #[arg(long, value_name = "N")]
    zones: Zones, default library, file number "a number such as 32";

    /// What --allocator context calls one and the same context: 1 to 16 equal return addresses, or
    /// height (the innermost one and the height of the stack: cheaper, and less exact)
    /// [default: 4]
    #[arg(long, value_name = "N|height")]
    context_depth: ContextDepth, default library, file number "a number such as 4, or \"height\"";

    /// Decompress and compare every page when it is stored, while the original is still there (for
    /// distrusted memory and new codecs)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    verify: bool, default library, file boolean "true or false (without quotes)";

    /// Manage only the program itself, none of the processes that it makes
    #[arg(long = "no-children", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new().map(|none| !none), hide_possible_values = true)]
    children: bool, default library, file boolean "true or false (without quotes)";

    /// Write the report as JSON to this file as well; - is standard output, after what the program
    /// wrote there
    #[arg(long, value_name = "FILE.json")]
    report: PathBuf, default none, file file "a file name in quotes";

    /// Write a report each time so long has passed (60s, 5m, 1h), while the program runs: to the
    /// file of --report, or without one as text to standard error
    #[arg(long, value_name = "TIME")]
    report_every: Every, default none, file text "a time such as \"60s\"";

    /// Write each move to this file as it is made, one line of JSON each: when, what, from where
    /// to where, and why
    #[arg(long, value_name = "FILE.jsonl")]
    moves: PathBuf, default none, file file "a file name in quotes";
}

impl Values {
    /// The slowdown to keep to, if there is one. A run in which pages are evicted at random has
    /// none of its own accord.
    pub fn slowdown_target(&self) -> Option<Target> {
        let dram = KEYS.iter().position(|key| *key == "dram").expect("it is one");
        let is_limited = self.origins[dram] != Origin::Default;
        self.slowdown.target(is_limited || is_stressed())
    }
}

/// Whether pages are evicted at random (`TERRACE_STRESS`).
pub fn is_stressed() -> bool {
    std::env::var("TERRACE_STRESS")
        .is_ok_and(|text| text.parse().is_ok_and(|stress: Stress| stress != Stress::Off))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_goes_before_the_file_before_the_default() {
        let flags =
            Given { dram: Some(Dram::Bytes(1 << 30)), observe: Some(false), ..Given::default() };
        let file = Given {
            dram: Some(Dram::Share(0.5)),
            observe: Some(true),
            strict: Some(true),
            ..Given::default()
        };
        let values = Values::merge(flags, file);
        let settings = values.settings();
        assert_eq!(settings.dram, Dram::Bytes(1 << 30));
        assert!(!settings.observe && settings.strict);
        assert_eq!(settings.tiers, Settings::default().tiers);
        for line in values.lines() {
            let origin = match line.key {
                "dram" | "observe" => Origin::CommandLine,
                "strict" => Origin::File,
                _ => Origin::Default,
            };
            assert_eq!(line.origin, origin, "{}", line.key);
        }
    }

    #[test]
    fn what_is_shown_can_be_read() {
        let values = Values::merge(Given::default(), Given::default());
        let lines: Vec<String> = values
            .lines()
            .into_iter()
            .filter_map(|line| Some(format!("{} = {}\n", line.key, line.toml?)))
            .collect();
        let file = crate::config_file::parse(&format!("[run]\n{}", lines.concat())).unwrap();
        let again = Values::merge(Given::default(), file);
        for (shown, again) in values.lines().iter().zip(again.lines()) {
            assert_eq!(shown.json, again.json, "{}", shown.key);
        }
    }
}
