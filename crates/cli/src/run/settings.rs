//! The settings of a run. All of this follows from the rows of one table, the library's in
//! `control/src/settings.rs`:
//!
//! - what may be said of them on the command line ([`Given`], for clap), and in a file (also
//!   [`Given`]);
//! - what is in force ([`Values`]);
//! - what `terrace config show` prints.

use crate::config::origin::{Origin, choose};
use crate::config::reader::{Reader, Value};
use crate::every::Every;
use crate::run::sampling::{Choice, Cost};
use crate::run::wake::WakeLatency;
use crate::values;
use clap::Args;
use clap::builder::{BoolishValueParser, TypedValueParser as _};
use std::path::PathBuf;
// The rows of the table name its types.
use terrace_control::settings::*;
use terrace_policy::registry::live::{self, LivePolicy};
use terrace_policy::slowdown::{Target, Wanted};
use terrace_policy::tiering::cost;
use terrace_tiers::SwapView;
use terrace_tiers::codec::CODECS;

/// How a value is shown in JSON, by how it is read from a file.
mod shown {
    use serde_json::Value;
    use std::fmt::Display;
    use std::path::Path;

    pub fn text(value: &impl Display) -> Value {
        value.to_string().into()
    }

    pub use self::text as tiers;
    pub use self::text as number_or_word;

    pub fn number(value: &impl Display) -> Value {
        value.to_string().parse::<u64>().ok().into()
    }

    pub fn float(value: &impl Display) -> Value {
        value.to_string().parse::<f64>().ok().into()
    }

    pub fn boolean(value: &bool) -> Value {
        (*value).into()
    }

    pub fn file(value: &Path) -> Value {
        value.to_string_lossy().into()
    }
}

/// A value as TOML; `None` where there is none.
fn toml_of(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(toml::Value::String(text.clone()).to_string()),
        other => Some(other.to_string()),
    }
}

/// A setting in force, for people and programs.
pub struct Line {
    /// Key of the setting.
    pub key: &'static str,
    /// Value as TOML; `None` where the setting has none.
    pub toml: Option<String>,
    /// Value as JSON.
    pub json: serde_json::Value,
    /// Where it comes from.
    pub origin: Origin,
}

/// What the command makes of the rows of [`terrace_control::settings_table`].
macro_rules! run_settings {
    (@type none $type:ty) => { Option<$type> };
    (@type $default:tt $type:ty) => { $type };
    (@default none) => { None };
    (@default ($default:expr)) => { $default };
    (@default $library:tt ($command:expr)) => { $command };
    (@given none $given:expr) => { $given.map(Some) };
    (@given $default:tt $given:expr) => { $given };
    (@json none $kind:ident $value:expr) => {
        $value.as_ref().map_or(serde_json::Value::Null, |value| shown::$kind(value))
    };
    (@json $default:tt $kind:ident $value:expr) => { shown::$kind(&$value) };
    (@told $variable:literal $value:expr) => { $value.clone() };
    ($(
        $(#[$about:meta])*
        $key:ident: $type:ty, default $default:tt, $(command $command:tt,)?
        $(variable $variable:literal,)? file $kind:ident $expected:literal;
    )* @inside $inside:tt) => {
        // What is said of each setting, on the command line or in a file; `None` of the others.
        // (Documentation here would be the command's.)
        #[derive(Args, Clone, Debug, Default, PartialEq)]
        pub struct Given {
            $($(#[$about])* pub $key: Option<$type>,)*
        }

        /// The settings in force, and where each comes from.
        #[derive(Clone, Debug)]
        pub struct Values {
            $(pub $key: run_settings!(@type $default $type),)*
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
                    run_settings!(@given $default flags.$key),
                    run_settings!(@given $default file.$key),
                    run_settings!(@default $default $($command)?),
                    &mut origins,
                );)*
                Values { $($key,)* origins }
            }

            /// What the library is told.
            pub fn settings(&self) -> Settings {
                let mut settings = Settings::default();
                $($(settings.$key = run_settings!(@told $variable self.$key);)?)*
                settings
            }

            /// All settings, in the order of the rows.
            pub fn lines(&self) -> Vec<Line> {
                let values = [$((
                    stringify!($key),
                    run_settings!(@json $default $kind self.$key),
                ),)*];
                let lines = values.into_iter().zip(&self.origins);
                let line = |((key, json), origin): (_, &Origin)| Line {
                    key,
                    toml: toml_of(&json),
                    json,
                    origin: *origin,
                };
                lines.map(line).collect()
            }
        }
    };
}

/// The tiers where none are named: with the kernel's swap where that is compressed memory, too.
fn default_tiers(swap: &SwapView) -> String {
    if swap.kind.is_memory() { "auto".into() } else { Settings::default().tiers }
}

terrace_control::settings_table! { run_settings }

/// The help of `--tiers`, with the codecs that there are.
fn tiers_help() -> String {
    let codecs: Vec<&str> = CODECS.iter().map(|codec| codec.word).collect();
    format!(
        "The tiers, fastest first: dram, then codecs as codec[:level][/pool][@medium]: {}; extent, \
         zsmalloc, zbud; dram, node:NUMBER, file:/DIRECTORY. Or a list's name, such as \
         tierscape-spectrum (`terrace config show`) [default: dram,lz4,zstd:1; auto, which adds swap, \
         where the kernel swaps to zram or zswap]",
        codecs.join(", ")
    )
}

/// The help of `--policy`, with the policies that there are.
fn policy_help() -> String {
    let (published, ours): (Vec<&LivePolicy>, Vec<&LivePolicy>) =
        live::POLICIES.iter().partition(|policy| policy.about.is_empty());
    let ours: Vec<String> =
        ours.iter().map(|policy| format!("{} ({})", policy.name, policy.about)).collect();
    let published: Vec<&str> = published.iter().map(|policy| policy.name).collect();
    format!(
        "Policy that chooses what leaves DRAM: {}, or the published {} [default: {}]",
        ours.join(", "),
        published.join(", "),
        live::NAMES[0]
    )
}

impl Values {
    /// The slowdown to keep to, if there is one. A run in which pages are evicted at random has
    /// none of its own accord.
    pub fn slowdown_target(&self) -> Option<Target> {
        let places = self.model().model().is_some();
        self.slowdown.target(self.is_given("dram") || places || is_stressed())
    }

    /// The model of `--placement`, or ours where nothing but a knob was given.
    pub fn model(&self) -> Placement {
        match self.placement {
            Placement::Auto if self.is_given("knob") => Placement::Model(cost::NAME),
            Placement::Auto => Placement::Off,
            placement => placement,
        }
    }

    /// Whether a setting is said on the command line or in a file.
    pub fn is_given(&self, key: &str) -> bool {
        let row = KEYS.iter().position(|known| *known == key).expect("it is one");
        self.origins[row] != Origin::Default
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
        assert_eq!(settings.tiers, default_tiers(&SwapView::of_machine()));
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
        let file = crate::config::file::parse(&format!("[run]\n{}", lines.concat())).unwrap();
        let again = Values::merge(Given::default(), file);
        for (shown, again) in values.lines().iter().zip(again.lines()) {
            assert_eq!(shown.json, again.json, "{}", shown.key);
        }
    }
}
