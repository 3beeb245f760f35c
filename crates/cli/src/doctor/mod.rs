//! `terrace doctor`: probes what Terrace needs of this machine and says of each thing what was
//! found, what follows, and what would fix it. Probes try the thing itself where they can: version
//! numbers lie about distribution kernels.
//!
//! It changes nothing, and a probe that cannot be made is a row that says so, never an error.

mod cgroup;
mod kernel;
mod library;
mod limits;
mod memory;
mod numa;
mod pagemap;
mod privileges;
mod row;
mod sampling;
mod swap;
mod userfaultfd;

use anstyle::AnsiColor;
use anyhow::Result;
use clap::Args;
use serde_json::json;
use std::io::Write;

pub use cgroup::{lowest_limit as lowest_group_limit, rooms as group_rooms};
pub use memory::{room as machine_room, total as machine_memory};
use row::{Row, Status};

/// `terrace doctor`.
#[derive(Args, Debug)]
pub struct DoctorArguments {
    /// Print what is well, too
    #[arg(long)]
    pub all: bool,
    /// Print JSON, with everything in it
    #[arg(long)]
    pub json: bool,
}

/// Runs all probes and prints them; the result is the exit status: 0 where Terrace can evict, 1
/// where it cannot.
pub fn run(arguments: &DoctorArguments) -> Result<u8> {
    let rows: Vec<Row> = [
        kernel::rows(),
        userfaultfd::rows(),
        pagemap::rows(),
        privileges::rows(),
        library::rows(),
        memory::rows(),
        limits::rows(),
        cgroup::rows(),
        swap::rows(),
        numa::rows(),
        sampling::rows(),
    ]
    .concat();
    let can_evict = !rows.iter().any(|row| row.required && row.status == Status::Missing);
    let mut out = anstream::AutoStream::auto(std::io::stdout());
    if arguments.json {
        let answer =
            json!({ "version": env!("CARGO_PKG_VERSION"), "can_evict": can_evict, "rows": rows });
        writeln!(out, "{answer:#}")?;
    } else {
        write!(out, "{}", text(&rows, arguments.all))?;
    }
    Ok(u8::from(!can_evict))
}

/// The verdict, and what is not well; with `all`, what is well too. Colours are for a terminal.
fn text(rows: &[Row], all: bool) -> String {
    let lacking: Vec<&str> = rows
        .iter()
        .filter(|row| row.required && row.status == Status::Missing)
        .map(|row| row.name)
        .collect();
    let mut text = if lacking.is_empty() {
        String::from("Terrace can evict here.\n\n")
    } else {
        format!(
            "Terrace cannot evict here for want of {}: programs would run unmanaged.\n\n",
            lacking.join(", ")
        )
    };
    if !all && let Some(idle) = rows.iter().find(|row| row.name == memory::IDLE) {
        text += &format!("{}.\n\n", idle.found);
    }
    let shown = |row: &&Row| all || row.status != Status::Ok;
    let width = rows.iter().filter(shown).map(|row| row.name.len()).max().unwrap_or(0);
    for row in rows.iter().filter(shown) {
        let (status, colour) = match row.status {
            Status::Ok => ("ok", AnsiColor::Green),
            Status::Warn => ("warn", AnsiColor::Yellow),
            Status::Missing => ("MISSING", AnsiColor::Red),
        };
        let colour = colour.on_default();
        text += &format!("{colour}{status:<7}{colour:#}  {:<width$}  {}\n", row.name, row.found);
        for (label, line) in [("", &row.consequence), ("fix: ", &row.fix)] {
            if !line.is_empty() {
                text += &format!("{:<7}  {:<width$}    {label}{line}\n", "", "");
            }
        }
    }
    match rows.iter().filter(|row| row.status == Status::Ok).count() {
        0 => {}
        _ if all => {}
        well => text += &format!("Well: {well} more (terrace doctor --all shows them).\n"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_required_row_decides() {
        let optional = Row::new("swap", Status::Missing, "none", "no tier", "add one");
        let rows = [Row::ok("kernel", "6.18", "all there").required(), optional];
        let plain = |rows: &[Row], all| anstream::adapter::strip_str(&text(rows, all)).to_string();
        let swap =
            "MISSING  swap    none\n                   no tier\n                   fix: add one\n";
        assert_eq!(
            plain(&rows, true),
            format!(
                "Terrace can evict here.\n\nok       kernel  6.18\n                   all there\n{swap}"
            )
        );
        assert_eq!(
            plain(&rows, false),
            format!(
                "Terrace can evict here.\n\n{swap}Well: 1 more (terrace doctor --all shows them).\n"
            )
            .replace("swap    none", "swap  none")
            .replace("\n                   ", "\n                 ")
        );
        let idle = [Row::ok(memory::IDLE, "60% of it", "much").required()];
        assert!(
            plain(&idle, false).starts_with("Terrace can evict here.\n\n60% of it.\n\nWell: 1")
        );
        let lacking = Row::new("move", Status::Missing, "no", "no", "upgrade").required();
        let told = plain(&[lacking], false);
        assert!(told.starts_with(
            "Terrace cannot evict here for want of move: programs would run unmanaged.\n"
        ));
        assert!(!told.contains("--all"));
    }

    #[test]
    fn every_probe_answers_here() {
        for rows in [
            kernel::rows(),
            userfaultfd::rows(),
            pagemap::rows(),
            privileges::rows(),
            memory::rows(),
            limits::rows(),
            cgroup::rows(),
            swap::rows(),
            numa::rows(),
            sampling::rows(),
        ] {
            assert!(!rows.is_empty());
            for row in rows {
                assert!(!row.found.is_empty() && !row.consequence.is_empty(), "{row:?}");
                assert!(
                    ![&row.found, &row.consequence, &row.fix]
                        .iter()
                        .any(|text| text.contains('\n')),
                    "{row:?}"
                );
                assert!(row.status != Status::Missing || !row.fix.is_empty(), "{row:?}");
            }
        }
    }
}
