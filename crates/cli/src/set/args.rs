//! The command line of `terrace set`.

use clap::Args;
use terrace_control::settings::{Dram, Knob, Window};
use terrace_policy::slowdown::Wanted;

/// Printed below the options of `--help`.
pub const HELP: &str = "\
Memory comes down to a lower limit within some seconds. What was not said stays as it is. Pages leave a tier that is not in the
list any more as far as another one takes them within the limit, but for the kernel's swap. Other settings are those of the program's start.
A run that was started with --observe, or with nothing that limits it, cannot be changed. Of a process that was attached to,
--dram and --slowdown can be: a size holds for its children too, a share and a slowdown for those that come later.

Examples:
  terrace set $(pidof -s redis-server) --dram 2G
  terrace set $(pidof -s redis-server) --dram unlimited --slowdown 2%
  terrace set $(pidof -s redis-server) --knob 0.9 --window 10s
  terrace set $(pidof -s redis-server) --tiers dram,zstd";

/// `terrace set`.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("limit").required(true).multiple(true)))]
pub struct SetArguments {
    /// A process of the run, its `terrace run`, or one that was attached to: see `terrace status`
    pub pid: u32,
    /// The limit for all processes of the run together: a size (512M, 4G), a share of the most
    /// data that there was so far (60%), or `unlimited`
    #[arg(long, value_name = "SIZE|PCT", allow_hyphen_values = true, group = "limit")]
    pub dram: Option<Dram>,
    /// The slowdown that may be caused beside it: a share of the time (2%), or `off`
    #[arg(long, value_name = "PCT|off", group = "limit")]
    pub slowdown: Option<Wanted>,
    /// Which tiers take pages from now on: some of those that the run was started with, in its
    /// order; `terrace status` shows them
    #[arg(long, value_name = "LIST", group = "limit")]
    pub tiers: Option<String>,
    /// How much the model saves that places regions, from the end of its window on: 1 is all
    /// speed, 0 all saving. Only in runs that were started with --knob or --placement
    #[arg(long, value_name = "A", group = "limit")]
    pub knob: Option<Knob>,
    /// Time between its plans: 0.5s to 600s
    #[arg(long, value_name = "TIME", group = "limit")]
    pub window: Option<Window>,
}
