//! What a user may set, and how it travels from `terrace run` into the program: one environment
//! variable a setting.
//!
//! The command validates everything before it starts the program. Inside the program a bad value is
//! reported in one line, and the program runs on unmanaged. A library must never stop the program
//! it lives in.

use std::fmt;
use std::str::FromStr;
use terrace_os::injection::Injection;
use terrace_policy::registry::live;
use terrace_policy::tiering;

/// Most tiers that a list may have.
pub const MAX_TIERS: usize = 8;

/// The limit for managed memory in DRAM (`--dram`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dram {
    /// No limit: nothing is evicted for the sake of a budget.
    Unlimited,
    /// This many bytes, whatever the program touches.
    Bytes(u64),
    /// A share (above 0, at most 1) of the running maximum of touched bytes, but at least
    /// [`MIN_BUDGET_BYTES`].
    Share(f64),
}

/// The least budget that a share can come to: below it a process is not worth managing.
pub const MIN_BUDGET_BYTES: u64 = 64 << 20;

/// A budget of this many bytes or more is none. Processes of a run whose limit follows a slowdown
/// have this one until they are assigned another.
pub const NO_BUDGET: u64 = 1 << 62;

impl Dram {
    /// The budget in bytes for a program that has touched at most `touched_max_bytes` at a time.
    pub fn budget_bytes(self, touched_max_bytes: u64) -> u64 {
        match self {
            Dram::Unlimited => u64::MAX,
            Dram::Bytes(bytes) => bytes,
            Dram::Share(share) => ((touched_max_bytes as f64 * share) as u64).max(MIN_BUDGET_BYTES),
        }
    }

    /// How much the budget grows when the program touches `bytes` more.
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
    /// Evicts no random pages.
    Off,
    /// Evicts this many pages a second.
    PagesPerSecond(u64),
    /// Evicts as fast as the mover can.
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
    /// lost. So it is opt-in, and ends for good when a sign of such input and output is seen.
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

/// Choice of the regions that get huge pages (`--huge-pages`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// No region: managed memory is kept from huge pages where a tier takes single pages.
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
    /// The policy's name, as `--policy` takes it.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Whether samples would change what the policy does.
    pub fn uses_samples(self) -> bool {
        live::by_name(self.0).is_some_and(|policy| policy.uses_samples)
    }

    /// Whether the policy knows less than it should without samples. Pages of compressed tiers are
    /// restored by faults, of which `terrace` learns as much
    /// (`docs/notes/2026-11-27-benchmarks.md`, "Samples and policies").
    pub fn needs_samples(self) -> bool {
        self.uses_samples() && self != Policy::default()
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy(live::NAMES[0])
    }
}

impl FromStr for Policy {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let known = live::NAMES.iter().find(|name| **name == text.trim());
        known.map(|name| Policy(name)).ok_or_else(|| {
            SettingError(format!("`{text}` is no policy: write one of {}", live::NAMES.join(", ")))
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The model that places every region over the tiers at each window's end (`--placement`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// None, unless `--knob` is given.
    #[default]
    Auto,
    /// None: pages leave DRAM where a budget asks for it.
    Off,
    /// The model of this name, one of [`tiering::NAMES`].
    Model(&'static str),
}

impl Placement {
    /// The model's name, if there is one.
    pub fn model(self) -> Option<&'static str> {
        match self {
            Placement::Model(name) => Some(name),
            Placement::Auto | Placement::Off => None,
        }
    }
}

impl FromStr for Placement {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let text = text.trim();
        let known = tiering::NAMES.iter().find(|name| **name == text);
        match (text, known) {
            ("auto", _) => Ok(Placement::Auto),
            ("off", _) => Ok(Placement::Off),
            (_, Some(name)) => Ok(Placement::Model(name)),
            _ => Err(SettingError(format!(
                "`{text}` is no placement model: write off or one of {}",
                tiering::NAMES.join(", ")
            ))),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Placement::Auto => "auto",
            Placement::Off => "off",
            Placement::Model(name) => name,
        })
    }
}

/// How much the placement model saves (`--knob`): 1 is all speed, 0 all saving.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knob(pub f64);

impl Default for Knob {
    /// TierScape's middle setting (§8.3).
    fn default() -> Self {
        Knob(0.5)
    }
}

impl FromStr for Knob {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim().parse() {
            Ok(knob) if (0.0..=1.0).contains(&knob) => Ok(Knob(knob)),
            _ => Err(SettingError(format!(
                "`{text}` is no knob: write a number from 0 (all saving) to 1 (all speed), such as 0.5"
            ))),
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Time after which the placement model plans again (`--window`), in ms: 0.5 s to 10 minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(pub u64);

impl Window {
    /// A window of `ms` milliseconds; `None` if that is out of range.
    pub fn of_ms(ms: u64) -> Option<Window> {
        (500..=600_000).contains(&ms).then_some(Window(ms))
    }
}

impl Default for Window {
    fn default() -> Self {
        Window(5_000)
    }
}

impl FromStr for Window {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let seconds: Option<f64> = text.trim().trim_end_matches('s').trim_end().parse().ok();
        match seconds {
            Some(seconds) if (0.5..=600.0).contains(&seconds) => {
                Ok(Window((seconds * 1000.0).round() as u64))
            }
            _ => Err(SettingError(format!(
                "`{text}` is no window: write 0.5 to 600 seconds, such as 5s"
            ))),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0 as f64 / 1000.0)
    }
}

/// Price of a byte in files, DRAM's being 1, for the placement model; `terrace run` has the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FilePrice(pub f64);

impl Default for FilePrice {
    /// June 2026: NVMe flash to DDR5.
    fn default() -> Self {
        FilePrice(0.025)
    }
}

impl FromStr for FilePrice {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim().parse() {
            Ok(price) if (0.0..=100.0).contains(&price) => Ok(FilePrice(price)),
            _ => Err(SettingError(format!(
                "`{text}` is no price: write what a byte in a file costs, 0 to 100 (DRAM's is 1)"
            ))),
        }
    }
}

impl fmt::Display for FilePrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The order in which objects lie (`--allocator`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocator {
    /// Objects lie by size, as with jemalloc.
    #[default]
    Size,
    /// Objects below a page lie by the calling context that allocates them, then by size (Jenga
    /// §4).
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
                "`{other}` is no allocator: write size, context (objects go by calling context) or system (the program's own)"
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

/// What makes a calling context (`--context-depth`): this many return addresses, 1 to 16. 0: the
/// innermost one and the height of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextDepth(pub u8);

impl Default for ContextDepth {
    /// 4: deeper contexts separate little more (`terrace-bench contexts`).
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

/// Value of `--tiers` where none is given: lz4 for what leaves DRAM first, zstd for what lz4 alone
/// cannot bring under the budget.
pub const DEFAULT_TIERS: &str = "dram,lz4,zstd:1";

/// The table of settings.
///
/// `terrace run` makes of each row:
/// - a flag (clap's argument is the row's documentation and `#[arg]`);
/// - a key of its file, and what `terrace config show` says;
/// - the manual page, the completions and docs/reference/settings.md.
///
/// The library makes of each row with a variable a field of
/// [`Settings`](crate::settings::Settings), which comes through the environment.
///
/// A row is `KEY: TYPE, default (VALUE), variable "NAME", file KIND "WHAT IS EXPECTED";`.
/// - A setting that only the command acts on has no variable. Its default may be `none`.
/// - `command (VALUE)` behind the default is what the command has where that differs.
/// - `KIND` is how it is written in a file: `text`, `number`, `number_or_word`, `float`, `boolean`,
///   `file` or `tiers`, which are functions of the command's `Reader`.
///
/// Below `@inside` are settings that users do not write. `variable`: what `terrace run` tells the
/// library beside those above. `inherited`: what tests and developers put into the environment
/// themselves, which programs inherit as it is.
///
/// The rows are handed to the macro `$then`, in whose place the names in them are looked up.
#[macro_export]
macro_rules! settings_table {
    ($then:ident) => {
        $then! {
            /// The limit for the managed memory of all processes together in DRAM: a size (512M,
            /// 4G: powers of 1024), a share of what the program has touched at most (60%), or
            /// `unlimited` [default: unlimited]
            #[arg(long, value_name = "SIZE|PCT", allow_hyphen_values = true)]
            dram: Dram, default (Dram::Unlimited), variable "TERRACE_DRAM",
            file text "a string such as \"60%\" or \"4G\"";

            /// Take as little memory as costs no more than this slowdown (2%): once memory has
            /// stopped growing it is limited, more and more while less is lost and less where more
            /// is. Beside --dram, whichever allows less. auto: 2% where nothing is said of --dram,
            /// else off [default: auto]
            #[arg(long, value_name = "PCT|auto|off")]
            slowdown: Wanted, default (Wanted::Auto),
            file text "a string such as \"2%\", \"auto\" or \"off\"";

            #[arg(long, help = tiers_help(), value_name = "LIST", value_parser = values::tiers)]
            tiers: String, default (DEFAULT_TIERS.to_owned()),
            command (default_tiers(&SwapView::of_machine())),
            variable "TERRACE_TIERS",
            file tiers "a string such as \"dram,lz4,zstd:1\"";

            /// Measure and report, move nothing
            #[arg(
                long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
                default_missing_value = "true", value_parser = BoolishValueParser::new(),
                hide_possible_values = true
            )]
            observe: bool, default (false), variable "TERRACE_OBSERVE",
            file boolean "true or false (without quotes)";

            /// Refuse to run (exit status 125) where the program's memory cannot be managed,
            /// instead of running it unmanaged
            #[arg(
                long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
                default_missing_value = "true", value_parser = BoolishValueParser::new(),
                hide_possible_values = true
            )]
            strict: bool, default (false), variable "TERRACE_STRICT",
            file boolean "true or false (without quotes)";

            /// How pages leave the page table: move (UFFDIO_MOVE, Linux 6.8), or wp (write-protect
            /// and discard, Linux 5.7; not beside O_DIRECT, io_uring, VFIO or RDMA: where one is
            /// seen, nothing more is evicted) [default: move]
            #[arg(long, value_name = "move|wp")]
            evict: Eviction, default (Eviction::Move), variable "TERRACE_EVICT",
            file text "\"move\" or \"wp\"";

            #[arg(long, help = policy_help(), value_name = "NAME")]
            policy: Policy, default (Policy::default()), variable "TERRACE_POLICY",
            file text "a name such as \"terrace\"";

            /// Model that plans the tier of each region, or off; auto: terrace-cost beside --knob
            #[arg(long, value_name = "NAME")]
            placement: Placement, default (Placement::default()), variable "TERRACE_PLACEMENT",
            file text "a name such as \"terrace-cost\"";

            /// How much that model saves: 1 is all speed, 0 all saving [default: 0.5]
            #[arg(long, value_name = "A")]
            knob: Knob, default (Knob::default()), variable "TERRACE_KNOB",
            file float "a number from 0 to 1 such as 0.5";

            /// Time between its plans: 0.5s to 600s [default: 5s]
            #[arg(long, value_name = "TIME")]
            window: Window, default (Window::default()), variable "TERRACE_WINDOW",
            file text "a time such as \"5s\"";

            /// What tells where the program waits for memory: pebs or ibs (processors that sample
            /// accesses), clock (perf events by the clock), timer (signals of the program's own,
            /// where perf events are forbidden), none (faults only), or auto: the best of the first
            /// three that this machine has, for policies that need it (jenga, memtis, memtis-qc)
            /// and for far memory [default: auto]
            #[arg(long, value_name = "NAME")]
            sampler: Choice, default (Choice::default()),
            file text "\"auto\", \"pebs\", \"ibs\", \"clock\", \"timer\" or \"none\"";

            /// What sampling may cost in all, interrupts included, as a share of one CPU (0.01% to
            /// 100%); after a change of what is hot three times as much for some seconds [default:
            /// 1%]
            #[arg(long, value_name = "PCT")]
            sampler_cost: Cost, default (Cost::default()),
            file text "a share of a CPU such as \"1%\"";

            /// Which regions get huge pages: off (none), or hot (those that samples call hot for
            /// some seconds, while all of their pages are in DRAM; they are split before a page
            /// leaves) [default: off]
            #[arg(long, value_name = "off|hot")]
            huge_pages: HugePages, default (HugePages::Off), variable "TERRACE_HUGE_PAGES",
            file text "\"off\" or \"hot\"";

            /// While pages come back by faults, let idle CPUs wake within this many µs, all of the
            /// machine's (0: they poll instead of sleeping): a thread that faults waits for a
            /// handler on one. Takes root, and costs power [default: off]
            #[arg(long, value_name = "off|US")]
            wake_latency: WakeLatency, default (WakeLatency::Off),
            file number_or_word "\"off\" or a number of µs such as 0";

            /// How objects lie in memory: size (by size, as jemalloc has them), context (those
            /// below 3.5 KiB by calling context, then by size), or system (the program's own
            /// allocator; then only mappings of 256 KiB and more are managed) [default: size]
            #[arg(long, value_name = "context|size|system")]
            allocator: Allocator, default (Allocator::default()), variable "TERRACE_ALLOCATOR",
            file text "\"size\", \"context\" or \"system\"";

            /// Groups into which --allocator context sorts calling contexts: 1 to 255 [default: 32]
            #[arg(long, value_name = "N")]
            zones: Zones, default (Zones::default()), variable "TERRACE_ZONES",
            file number "a number such as 32";

            /// What --allocator context calls one and the same context: 1 to 16 equal return
            /// addresses, or height (the innermost one and the height of the stack: cheaper, and
            /// less exact) [default: 4]
            #[arg(long, value_name = "N|height")]
            context_depth: ContextDepth, default (ContextDepth::default()),
            variable "TERRACE_CONTEXT_DEPTH",
            file number_or_word "a number such as 4, or \"height\"";

            /// Bring back no pages ahead of a thread that faults page by page
            #[arg(
                long = "no-readahead", value_name = "BOOL", num_args = 0..=1, require_equals = true,
                default_missing_value = "true",
                value_parser = BoolishValueParser::new().map(|none| !none),
                hide_possible_values = true
            )]
            readahead: bool, default (true), variable "TERRACE_READAHEAD",
            file boolean "true or false (without quotes)";

            /// Serve faults at once: wait for no others to serve together
            #[arg(
                long = "no-coalescing", value_name = "BOOL", num_args = 0..=1,
                require_equals = true,
                default_missing_value = "true",
                value_parser = BoolishValueParser::new().map(|none| !none),
                hide_possible_values = true
            )]
            coalescing: bool, default (true), variable "TERRACE_COALESCING",
            file boolean "true or false (without quotes)";

            /// Decompress and compare every page when it is stored, while the original is still
            /// there (for distrusted memory and new codecs)
            #[arg(
                long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
                default_missing_value = "true", value_parser = BoolishValueParser::new(),
                hide_possible_values = true
            )]
            verify: bool, default (false), variable "TERRACE_VERIFY",
            file boolean "true or false (without quotes)";

            /// Manage only the program itself, none of the processes that it makes
            #[arg(
                long = "no-children", value_name = "BOOL", num_args = 0..=1, require_equals = true,
                default_missing_value = "true", value_parser = BoolishValueParser::new().map(|none|
                !none), hide_possible_values = true
            )]
            children: bool, default (true), variable "TERRACE_CHILDREN",
            file boolean "true or false (without quotes)";

            /// Write the report as JSON to this file as well; - is standard output, after what the
            /// program wrote there
            #[arg(long, value_name = "FILE.json")]
            report: PathBuf, default none, file file "a file name in quotes";

            /// Write a report each time this long has passed (60s, 5m, 1h), while the program runs:
            /// to the file of --report, or without one as text to standard error
            #[arg(long, value_name = "TIME")]
            report_every: Every, default none, file text "a time such as \"60s\"";

            /// Write each move to this file as it is made, one line of JSON each: when, what, from
            /// where to where, and why
            #[arg(long, value_name = "FILE.jsonl")]
            moves: PathBuf, default none, file file "a file name in quotes";

            @inside {
                /// What a byte in a file costs.
                file_price: FilePrice, default (FilePrice::default()),
                variable "TERRACE_FILE_PRICE";

                /// Whether it is told which callers' objects are where and how hot: where objects
                /// go by context and samples are taken.
                sites: bool, default (false), variable "TERRACE_SITES";

                /// Threads of the program are interrupted by timers while `terrace run` wants that
                /// (`--sampler timer`).
                timers: bool, default (false), variable "TERRACE_TIMERS";

                /// Whether each move is told of (`moves.rs`), for `--moves`.
                moves: bool, default (false), variable "TERRACE_MOVES";

                /// The process that is `terrace run`. Its child is the program itself, whatever
                /// that executes.
                run_pid: Option<u32>, default (None), variable "TERRACE_RUN_PID";

                /// How hard random pages are evicted, for tests.
                stress: Stress, default (Stress::Off), inherited "TERRACE_STRESS";

                /// Calls that fail on purpose, for tests.
                inject: Option<Injection>, default (None), inherited "TERRACE_INJECT";

                /// Whether the steps of faults and evictions are measured.
                trace_faults: bool, default (false), inherited "TERRACE_TRACE_FAULTS";

                /// The private directory in which each process of a run puts its statistics page.
                run_dir: Option<String>, default (None), variable "TERRACE_RUN_DIR";
            }
        }
    };
}

/// What the library makes of the rows.
macro_rules! library_settings {
    (@default $variable:literal ($default:expr)) => { $default };
    (@hand_on inherited $variable:literal $setting:expr, $variables:ident) => {};
    (@hand_on variable $variable:literal $setting:expr, $variables:ident) => {
        $variables.extend($setting.to_variable().map(|text| ($variable, text)));
    };
    ($(
        $(#[$about:meta])*
        $key:ident: $type:ty, default $default:tt, $(command $command:tt,)?
        $(variable $variable:literal,)? file $kind:ident $expected:literal;
    )*
    @inside {$(
        $(#[$about_inside:meta])*
        $key_inside:ident: $type_inside:ty, default $default_inside:tt,
        $how:ident $variable_inside:literal;
    )*}) => {
        /// Everything one process's Terrace is told.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Settings {
            $($(
                #[doc = concat!(
                    "`", stringify!($key), "`, in the environment as `", $variable, "`."
                )]
                pub $key: $type,
            )?)*
            $(
                $(#[$about_inside])*
                #[doc = concat!("In the environment as `", $variable_inside, "`.")]
                pub $key_inside: $type_inside,
            )*
        }

        impl Default for Settings {
            fn default() -> Self {
                Settings {
                    $($($key: library_settings!(@default $variable $default),)?)*
                    $($key_inside: library_settings!(@default $variable_inside $default_inside),)*
                }
            }
        }

        /// The variables that the settings are read from.
        pub const VARIABLES: &[&str] = &[$($($variable,)?)* $($variable_inside,)*];

        impl Settings {
            /// Reads the settings out of an environment; `get` answers a variable's value.
            pub fn from_environment(
                get: impl Fn(&str) -> Option<String>,
            ) -> Result<Self, SettingError> {
                let mut settings = Settings::default();
                $($(take(&mut settings.$key, $variable, get($variable))?;)?)*
                $(take(&mut settings.$key_inside, $variable_inside, get($variable_inside))?;)*
                Ok(settings)
            }

            /// The settings as environment variables, for the program that `terrace run` starts.
            /// The caller's own (`TERRACE_STRESS`, say) are not among them: they are
            /// inherited as they are.
            pub fn to_environment(&self) -> Vec<(&'static str, String)> {
                let mut variables = Vec::new();
                $($(library_settings!(@hand_on variable $variable self.$key, variables);)?)*
                $(library_settings!(@hand_on $how $variable_inside self.$key_inside, variables);)*
                variables
            }
        }
    };
}

settings_table! { library_settings }

/// A setting as the text of an environment variable.
trait Variable: Sized {
    /// Whether a blank text is read, too. Otherwise it is as good as no variable.
    const READS_BLANKS: bool = false;

    /// Reads the text of the variable of that name.
    fn read(name: &str, text: &str) -> Result<Self, SettingError>;

    /// What is read as this setting; `None` where no variable is.
    fn to_variable(&self) -> Option<String>;
}

/// Settings that are written as they are shown.
macro_rules! shown_in_variables {
    ($($type:ty, reads blanks $blanks:literal;)*) => {$(
        impl Variable for $type {
            const READS_BLANKS: bool = $blanks;

            fn read(_: &str, text: &str) -> Result<Self, SettingError> {
                text.parse()
            }

            fn to_variable(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}

shown_in_variables! {
    Dram, reads blanks true;
    Eviction, reads blanks true;
    Policy, reads blanks false;
    Placement, reads blanks false;
    Knob, reads blanks false;
    Window, reads blanks false;
    FilePrice, reads blanks false;
    HugePages, reads blanks false;
    Allocator, reads blanks false;
    Zones, reads blanks false;
    ContextDepth, reads blanks false;
}

impl Variable for bool {
    fn read(name: &str, text: &str) -> Result<Self, SettingError> {
        match text.trim() {
            "0" => Ok(false),
            "1" => Ok(true),
            other => Err(SettingError(format!("{name}=`{other}`: write 0 or 1"))),
        }
    }

    fn to_variable(&self) -> Option<String> {
        Some(u8::from(*self).to_string())
    }
}

impl Variable for String {
    const READS_BLANKS: bool = true;

    fn read(_: &str, text: &str) -> Result<Self, SettingError> {
        Ok(text.to_owned())
    }

    fn to_variable(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl Variable for Option<String> {
    const READS_BLANKS: bool = true;

    fn read(_: &str, text: &str) -> Result<Self, SettingError> {
        Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
    }

    fn to_variable(&self) -> Option<String> {
        self.clone()
    }
}

impl Variable for Option<u32> {
    fn read(name: &str, text: &str) -> Result<Self, SettingError> {
        let number = text.trim().parse::<u32>();
        number.map(Some).map_err(|_| SettingError(format!("{name}=`{text}`: write a process id")))
    }

    fn to_variable(&self) -> Option<String> {
        self.map(|number| number.to_string())
    }
}

impl Variable for Stress {
    fn read(_: &str, text: &str) -> Result<Self, SettingError> {
        text.parse()
    }

    fn to_variable(&self) -> Option<String> {
        None
    }
}

impl Variable for Option<Injection> {
    const READS_BLANKS: bool = true;

    fn read(_: &str, text: &str) -> Result<Self, SettingError> {
        if text.is_empty() {
            return Ok(None);
        }
        text.parse::<Injection>().map(Some).map_err(SettingError)
    }

    fn to_variable(&self) -> Option<String> {
        None
    }
}

/// Takes a setting from its variable; one that is not there leaves it as it is.
fn take<T: Variable>(
    setting: &mut T,
    name: &str,
    text: Option<String>,
) -> Result<(), SettingError> {
    if let Some(text) = text.filter(|text| T::READS_BLANKS || !text.trim().is_empty()) {
        *setting = T::read(name, &text)?;
    }
    Ok(())
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
            placement: Placement::Model("tierscape"),
            knob: Knob(0.25),
            window: Window(2_500),
            file_price: FilePrice(0.1),
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
            run_dir: Some("/x".into()),
            ..Settings::default()
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
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::with_cases(512)
        })]

        /// Whatever the variables hold, there are settings or a sentence that names the value;
        /// never a panic in the program.
        #[test]
        fn any_environment_is_settings_or_a_reason(
            values in vec(prop::option::of(value()), VARIABLES.len())
        ) {
            let get = |name: &str| {
                let place = VARIABLES.iter().position(|known| *known == name);
                values[place.expect("only these are asked for")].clone()
            };
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
                Err(SettingError(text)) => prop_assert!(
                    text.contains('`') && text.contains("write"), "{text}"
                ),
            }
        }

        #[test]
        fn sizes_and_shares_are_read_as_written(
            number in 1u64..1 << 20, unit in 0usize..5, percent in 1u32..=100_000
        ) {
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
