//! What a user may set, and how it travels from `terrace run` into the program: one environment
//! variable a setting.
//!
//! The command validates everything before it starts the program; inside the program a bad value is
//! said in one line and the program runs on unmanaged, because a library must never stop the
//! program it lives in.

use crate::injection::Injection;
use std::fmt;
use std::str::FromStr;
use terrace_policy::live::NAMES;

/// The limit for managed memory in DRAM (`--dram`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dram {
    /// No limit: nothing is evicted for the sake of a budget.
    Unlimited,
    /// So many bytes, whatever the program touches.
    Bytes(u64),
    /// This share (0 < share ≤ 1) of the running maximum of touched bytes, but at least
    /// [`MIN_BUDGET_BYTES`].
    Share(f64),
}

/// The least budget that a share can come to: below it a process is not worth managing (design,
/// Words: budget).
pub const MIN_BUDGET_BYTES: u64 = 64 << 20;

impl Dram {
    /// The budget in bytes for a program that has touched at most `touched_max_bytes` at a time.
    pub fn budget_bytes(self, touched_max_bytes: u64) -> u64 {
        match self {
            Dram::Unlimited => u64::MAX,
            Dram::Bytes(bytes) => bytes,
            Dram::Share(share) => ((touched_max_bytes as f64 * share) as u64).max(MIN_BUDGET_BYTES),
        }
    }

    /// How much the budget grows when the program touches so much more.
    pub fn of_growth(self, bytes: u64) -> u64 {
        match self {
            Dram::Share(share) => (bytes as f64 * share) as u64,
            Dram::Unlimited | Dram::Bytes(_) => 0,
        }
    }
}

impl fmt::Display for Dram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dram::Unlimited => f.write_str("unlimited"),
            Dram::Bytes(bytes) => write!(f, "{bytes}"),
            Dram::Share(share) => {
                // 0.07 × 100 is 7.000000000000001: as it was written, where that is read as this
                // share again.
                let percent = share * 100.0;
                let rounded = (percent * 1e9).round() / 1e9;
                write!(f, "{}%", if rounded / 100.0 == *share { rounded } else { percent })
            }
        }
    }
}

/// Why a setting's text was refused: what was given, and what would be right.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub String);

impl FromStr for Dram {
    type Err = SettingError;

    /// `unlimited`, a share such as `60%` (above 0, at most 100), or a size such as `512M`.
    fn from_str(text: &str) -> Result<Self, SettingError> {
        let text = text.trim();
        if text == "unlimited" {
            return Ok(Dram::Unlimited);
        }
        if let Some(number) = text.strip_suffix('%') {
            return match number.trim().parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 => {
                    Ok(Dram::Share(percent / 100.0))
                }
                _ => Err(SettingError(format!(
                    "`{text}` is not a share of memory: write a number above 0 and at most 100 before the %, such as 60%"
                ))),
            };
        }
        parse_size(text).map(Dram::Bytes)
    }
}

/// Parses a size with a binary suffix: `4096`, `512K`, `512M`, `4G`, `1T` (powers of 1,024; `MiB`,
/// `MB` and lower case are accepted too). Zero and sizes beyond 2^63 are errors.
pub fn parse_size(text: &str) -> Result<u64, SettingError> {
    let refuse = || {
        SettingError(format!(
            "`{text}` is not a size: write a number with K, M, G or T (powers of 1024) such as 512M or 4G, or a share such as 60%"
        ))
    };
    let text_trimmed = text.trim();
    let split =
        text_trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text_trimmed.len());
    let (number, suffix) = text_trimmed.split_at(split);
    let number: f64 = number.parse().map_err(|_| refuse())?;
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(refuse()),
    };
    let bytes = number * (1u64 << shift) as f64;
    if !(bytes >= 1.0 && bytes < (1u64 << 63) as f64) {
        return Err(refuse());
    }
    Ok(bytes as u64)
}

/// How hard `TERRACE_STRESS` evicts random pages, budget or not. For tests: it finds what a quiet
/// run does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stress {
    /// Not at all.
    Off,
    /// So many pages a second.
    PagesPerSecond(u64),
    /// As fast as the mover can.
    Full,
}

impl FromStr for Stress {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim() {
            "" | "0" | "off" => Ok(Stress::Off),
            "full" => Ok(Stress::Full),
            number => match number.parse() {
                Ok(pages) => Ok(Stress::PagesPerSecond(pages)),
                Err(_) => Err(SettingError(format!(
                    "TERRACE_STRESS=`{number}`: write off, full, or random pages to evict per second"
                ))),
            },
        }
    }
}

/// How a page leaves the page table (`--evict`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// UFFDIO_MOVE (Linux 6.8): the kernel refuses pages that a device may write to.
    Move,
    /// Write-protect, copy, discard (Linux 5.7). What a device writes into a page meanwhile is
    /// lost, so it is opt-in and ends for good when a sign of such input and output is seen
    /// (`facts/traps.md`).
    WriteProtect,
}

impl FromStr for Eviction {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim() {
            "move" => Ok(Eviction::Move),
            "wp" => Ok(Eviction::WriteProtect),
            other => Err(SettingError(format!(
                "`{other}` is no way to evict: write move (Linux 6.8) or wp (older kernels)"
            ))),
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Eviction::Move => "move",
            Eviction::WriteProtect => "wp",
        })
    }
}

/// Which regions get huge pages (`--huge-pages`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// None: managed memory is kept from huge pages where a tier takes single pages.
    #[default]
    Off,
    /// Regions of which samples say for some seconds that they are hot, while all of their pages
    /// are in DRAM.
    Hot,
}

impl FromStr for HugePages {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim() {
            "off" => Ok(HugePages::Off),
            "hot" => Ok(HugePages::Hot),
            other => Err(SettingError(format!(
                "`{other}` does not say what gets huge pages: write off, or hot (regions that stay hot)"
            ))),
        }
    }
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HugePages::Off => "off",
            HugePages::Hot => "hot",
        })
    }
}

/// The policy that chooses which pages are evicted from DRAM (`--policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(&'static str);

impl Policy {
    /// Its name.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Whether samples would change what it does.
    pub fn uses_samples(self) -> bool {
        self.0 != "faults"
    }

    /// Whether it knows less than it should without them. From compressed tiers pages come back by
    /// faults, of which `terrace` learns as much (`docs/benchmarks.md`, "Samples and
    /// policies").
    pub fn needs_samples(self) -> bool {
        self.uses_samples() && self != Policy::default()
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy(NAMES[0])
    }
}

impl FromStr for Policy {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let known = NAMES.iter().find(|name| **name == text.trim());
        known.map(|name| Policy(name)).ok_or_else(|| {
            SettingError(format!("`{text}` is no policy: write one of {}", NAMES.join(", ")))
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// In which order objects lie (`--allocator`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocator {
    /// By size, as jemalloc has it.
    #[default]
    Size,
    /// Objects below a page by who allocates them, then by size (Jenga §4).
    Context,
    /// The program's own allocator: only its mappings are managed.
    System,
}

impl FromStr for Allocator {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim() {
            "size" => Ok(Allocator::Size),
            "context" => Ok(Allocator::Context),
            "system" => Ok(Allocator::System),
            other => Err(SettingError(format!(
                "`{other}` is no allocator: write size, context (objects go by who allocates them) or system (the program's own)"
            ))),
        }
    }
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Allocator::Size => "size",
            Allocator::Context => "context",
            Allocator::System => "system",
        })
    }
}

/// Zones for the groups of contexts (`--zones`): 1 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zones(pub u8);

impl Default for Zones {
    fn default() -> Self {
        Zones(32)
    }
}

impl FromStr for Zones {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim().parse() {
            Ok(zones @ 1..=255) => Ok(Zones(zones)),
            _ => Err(SettingError(format!("`{text}` is no number of zones: write 1 to 255"))),
        }
    }
}

impl fmt::Display for Zones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What makes a calling context (`--context-depth`): so many return addresses, 1 to 16, or 0: the
/// innermost and the height of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextDepth(pub u8);

impl Default for ContextDepth {
    /// 2 to 4 separate all that 10 do (`facts/allocator.md`, §2).
    fn default() -> Self {
        ContextDepth(4)
    }
}

impl FromStr for ContextDepth {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim() {
            "height" => Ok(ContextDepth(0)),
            number => match number.parse() {
                Ok(depth @ 1..=16) => Ok(ContextDepth(depth)),
                _ => Err(SettingError(format!(
                    "`{text}` is no depth of contexts: write 1 to 16 return addresses, or height (the innermost one and the height of the stack)"
                ))),
            },
        }
    }
}

impl fmt::Display for ContextDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("height"),
            depth => depth.fmt(f),
        }
    }
}

/// Everything one process's Terrace is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `--dram`, in the environment as `TERRACE_DRAM`.
    pub dram: Dram,
    /// `--tiers`, as `TERRACE_TIERS`; parsed by `terrace_tiers::spec`.
    pub tiers: String,
    /// `--observe`, as `TERRACE_OBSERVE=1`: measure and report, move nothing.
    pub observe: bool,
    /// `--strict`, as `TERRACE_STRICT=1`: refuse to run (exit status 125) where the memory cannot
    /// be managed.
    pub strict: bool,
    /// `--evict`, as `TERRACE_EVICT`.
    pub evict: Eviction,
    /// `--policy`, as `TERRACE_POLICY`: one of [`terrace_policy::live::NAMES`].
    pub policy: Policy,
    /// `--huge-pages`, as `TERRACE_HUGE_PAGES`.
    pub huge_pages: HugePages,
    /// `--allocator`, as `TERRACE_ALLOCATOR`.
    pub allocator: Allocator,
    /// `--zones`, as `TERRACE_ZONES`.
    pub zones: Zones,
    /// `--context-depth`, as `TERRACE_CONTEXT_DEPTH`.
    pub context_depth: ContextDepth,
    /// Whether it is told which callers' objects are where and how hot: `TERRACE_SITES=1`, which
    /// `terrace run` sets where objects go by context and samples are taken.
    pub sites: bool,
    /// Threads of the program are interrupted by timers while `terrace run` wants that (`--sampler
    /// timer`).
    pub timers: bool,
    /// Whether each move is told of (`moves.rs`): `TERRACE_MOVES=1`, which `terrace run --moves`
    /// sets.
    pub moves: bool,
    /// `--verify`, as `TERRACE_VERIFY=1`: decompress and compare every page when it is stored,
    /// while the original is still there.
    pub verify: bool,
    /// `--no-children` turns it off, as `TERRACE_CHILDREN=0`: only the program that `terrace run`
    /// starts is managed.
    pub children: bool,
    /// `TERRACE_RUN_PID`: the process that is `terrace run`. Its child is the program itself,
    /// whatever that executes.
    pub run_pid: Option<u32>,
    /// `TERRACE_STRESS`: see [`Stress`].
    pub stress: Stress,
    /// `TERRACE_INJECT`: see [`Injection`].
    pub inject: Option<Injection>,
    /// `TERRACE_TRACE_FAULTS=1`: measure the steps of faults and evictions.
    pub trace_faults: bool,
    /// `TERRACE_RUN_DIR`: the private directory in which each process of a run puts its statistics
    /// page.
    pub run_dir: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            dram: Dram::Unlimited,
            tiers: DEFAULT_TIERS.into(),
            observe: false,
            strict: false,
            evict: Eviction::Move,
            policy: Policy::default(),
            huge_pages: HugePages::Off,
            allocator: Allocator::default(),
            zones: Zones::default(),
            context_depth: ContextDepth::default(),
            sites: false,
            timers: false,
            moves: false,
            verify: false,
            children: true,
            run_pid: None,
            stress: Stress::Off,
            inject: None,
            trace_faults: false,
            run_dir: None,
        }
    }
}

/// `--tiers` when nothing is said: lz4 for what leaves DRAM first, zstd for what lz4 alone cannot
/// bring under the budget.
pub const DEFAULT_TIERS: &str = "dram,lz4,zstd:1";

impl Settings {
    /// Reads the settings out of an environment; `get` answers a variable's value.
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let mut settings = Settings::default();
        if let Some(text) = get("TERRACE_DRAM") {
            settings.dram = text.parse()?;
        }
        if let Some(text) = get("TERRACE_TIERS") {
            settings.tiers = text;
        }
        settings.observe = flag("TERRACE_OBSERVE", get("TERRACE_OBSERVE"))?;
        settings.strict = flag("TERRACE_STRICT", get("TERRACE_STRICT"))?;
        if let Some(text) = get("TERRACE_EVICT") {
            settings.evict = text.parse()?;
        }
        if let Some(text) = get("TERRACE_POLICY").filter(|text| !text.trim().is_empty()) {
            settings.policy = text.parse()?;
        }
        if let Some(text) = get("TERRACE_HUGE_PAGES").filter(|text| !text.trim().is_empty()) {
            settings.huge_pages = text.parse()?;
        }
        if let Some(text) = get("TERRACE_ALLOCATOR").filter(|text| !text.trim().is_empty()) {
            settings.allocator = text.parse()?;
        }
        if let Some(text) = get("TERRACE_ZONES").filter(|text| !text.trim().is_empty()) {
            settings.zones = text.parse()?;
        }
        if let Some(text) = get("TERRACE_CONTEXT_DEPTH").filter(|text| !text.trim().is_empty()) {
            settings.context_depth = text.parse()?;
        }
        settings.sites = flag("TERRACE_SITES", get("TERRACE_SITES"))?;
        settings.timers = flag("TERRACE_TIMERS", get("TERRACE_TIMERS"))?;
        settings.moves = flag("TERRACE_MOVES", get("TERRACE_MOVES"))?;
        settings.verify = flag("TERRACE_VERIFY", get("TERRACE_VERIFY"))?;
        if let Some(text) = get("TERRACE_CHILDREN").filter(|text| !text.trim().is_empty()) {
            settings.children = flag("TERRACE_CHILDREN", Some(text))?;
        }
        if let Some(text) = get("TERRACE_RUN_PID").filter(|text| !text.trim().is_empty()) {
            let pid = text.trim().parse().map_err(|_| {
                SettingError(format!("TERRACE_RUN_PID=`{text}`: write a process id"))
            })?;
            settings.run_pid = Some(pid);
        }
        if let Some(text) = get("TERRACE_STRESS") {
            settings.stress = text.parse()?;
        }
        if let Some(text) = get("TERRACE_INJECT").filter(|text| !text.is_empty()) {
            settings.inject = Some(text.parse()?);
        }
        settings.trace_faults = flag("TERRACE_TRACE_FAULTS", get("TERRACE_TRACE_FAULTS"))?;
        settings.run_dir = get("TERRACE_RUN_DIR").filter(|dir| !dir.is_empty());
        Ok(settings)
    }

    /// These settings as environment variables, for the program that `terrace run` starts.
    /// `TERRACE_STRESS`, `TERRACE_INJECT` and `TERRACE_TRACE_FAULTS` are not among them: they are
    /// the caller's own variables and are inherited as they are.
    pub fn to_environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("TERRACE_DRAM", self.dram.to_string()),
            ("TERRACE_TIERS", self.tiers.clone()),
            ("TERRACE_OBSERVE", u8::from(self.observe).to_string()),
            ("TERRACE_STRICT", u8::from(self.strict).to_string()),
            ("TERRACE_EVICT", self.evict.to_string()),
            ("TERRACE_POLICY", self.policy.to_string()),
            ("TERRACE_HUGE_PAGES", self.huge_pages.to_string()),
            ("TERRACE_ALLOCATOR", self.allocator.to_string()),
            ("TERRACE_ZONES", self.zones.to_string()),
            ("TERRACE_CONTEXT_DEPTH", self.context_depth.to_string()),
            ("TERRACE_SITES", u8::from(self.sites).to_string()),
            ("TERRACE_TIMERS", u8::from(self.timers).to_string()),
            ("TERRACE_MOVES", u8::from(self.moves).to_string()),
            ("TERRACE_VERIFY", u8::from(self.verify).to_string()),
            ("TERRACE_CHILDREN", u8::from(self.children).to_string()),
        ];
        if let Some(pid) = self.run_pid {
            variables.push(("TERRACE_RUN_PID", pid.to_string()));
        }
        if let Some(dir) = &self.run_dir {
            variables.push(("TERRACE_RUN_DIR", dir.clone()));
        }
        variables
    }
}

fn flag(name: &str, value: Option<String>) -> Result<bool, SettingError> {
    match value.as_deref().map(str::trim) {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(SettingError(format!("{name}=`{other}`: write 0 or 1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_binary_and_bad_ones_are_refused() {
        assert_eq!("512M".parse(), Ok(Dram::Bytes(512 << 20)));
        assert_eq!("4g".parse(), Ok(Dram::Bytes(4 << 30)));
        assert_eq!("1.5GiB".parse(), Ok(Dram::Bytes(3 << 29)));
        assert_eq!("60%".parse(), Ok(Dram::Share(0.6)));
        for bad in ["", "0", "-1", "M", "12X", "0%", "101%", "nan", "inf", "1e3", "%", "99999999T"]
        {
            assert!(bad.parse::<Dram>().is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_survive_the_environment() {
        let settings = Settings {
            dram: Dram::Share(0.6),
            tiers: "dram,lz4".into(),
            observe: true,
            strict: true,
            evict: Eviction::WriteProtect,
            policy: Policy("jenga"),
            huge_pages: HugePages::Hot,
            allocator: Allocator::Context,
            zones: Zones(7),
            context_depth: ContextDepth(0),
            sites: true,
            timers: true,
            moves: true,
            verify: true,
            children: false,
            run_pid: Some(7),
            stress: Stress::Off,
            inject: None,
            trace_faults: false,
            run_dir: Some("/x".into()),
        };
        let environment = settings.to_environment();
        let get = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        assert_eq!(Settings::from_environment(get), Ok(settings));
    }

    /// Values as they are, nearly are, and are not at all.
    fn value() -> impl Strategy<Value = String> {
        let parts = [
            "0", "1", "9", ".", "%", "K", "MiB", "g", "-", "+", "e", " ", "full", "off", "dram",
            ",", "inf",
        ];
        prop_oneof![
            any::<String>(),
            vec(prop::sample::select(parts.to_vec()), 0..6).prop_map(|parts| parts.concat())
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

        /// Whatever the variables hold, there are settings or a sentence that names the value; never a panic in somebody's program.
        #[test]
        fn any_environment_is_settings_or_a_reason(values in vec(prop::option::of(value()), 20)) {
            let names = [
                "TERRACE_DRAM",
                "TERRACE_TIERS",
                "TERRACE_OBSERVE",
                "TERRACE_STRICT",
                "TERRACE_EVICT",
                "TERRACE_POLICY",
                "TERRACE_HUGE_PAGES",
                "TERRACE_ALLOCATOR",
                "TERRACE_ZONES",
                "TERRACE_CONTEXT_DEPTH",
                "TERRACE_SITES",
                "TERRACE_TIMERS",
                "TERRACE_VERIFY",
                "TERRACE_CHILDREN",
                "TERRACE_RUN_PID",
                "TERRACE_STRESS",
                "TERRACE_INJECT",
                "TERRACE_RUN_DIR",
                "TERRACE_TRACE_FAULTS",
                "TERRACE_MOVES",
            ];
            let get = |name: &str| values[names.iter().position(|known| *known == name).expect("only these are asked for")].clone();
            match Settings::from_environment(get) {
                Ok(settings) => {
                    // They are handed on as they were understood.
                    let environment = settings.to_environment();
                    let again = |name: &str| match name {
                        "TERRACE_STRESS" | "TERRACE_INJECT" | "TERRACE_TRACE_FAULTS" => get(name),
                        _ => environment.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone()),
                    };
                    prop_assert_eq!(Settings::from_environment(again), Ok(settings));
                }
                Err(SettingError(text)) => prop_assert!(text.contains('`') && text.contains("write"), "{text}"),
            }
        }

        #[test]
        fn sizes_and_shares_are_read_as_written(number in 1u64..1 << 20, unit in 0usize..5, percent in 1u32..=100_000) {
            let suffix = ["", "K", "m", "GiB", "TB"][unit];
            let bytes = number << (10 * unit);
            prop_assert_eq!(format!(" {number}{suffix} ").parse(), Ok(Dram::Bytes(bytes)));
            prop_assert_eq!(Dram::Bytes(bytes).to_string().parse(), Ok(Dram::Bytes(bytes)));
            let text = format!("{}%", f64::from(percent) / 1000.0);
            let share: Dram = text.parse().unwrap();
            prop_assert_eq!(share.to_string(), text);
            prop_assert!(share.budget_bytes(1 << 40) <= 1 << 40);
        }
    }
}
