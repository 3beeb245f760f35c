//! Budgets that cannot mean what they say: less than can be reached, more than there is.

use crate::doctor;
use crate::quantity::bytes;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use terrace_control::START_MIN_BYTES;
use terrace_control::settings::{Dram, MIN_BUDGET_BYTES};

/// A limit as people read it: a size in powers of 1024, or as it was written.
pub fn shown(dram: Dram) -> String {
    match dram {
        Dram::Bytes(size) => bytes(size),
        dram => dram.to_string(),
    }
}

/// A share of the most data that an earlier run had at a time, by its JSON report.
pub fn of_report(dram: Dram, report: &Path) -> Result<Dram> {
    let Dram::Share(share) = dram else {
        bail!("--of {} needs a share that is taken of it, such as --dram 60%", report.display())
    };
    let text = fs::read_to_string(report)
        .with_context(|| format!("--of {}: cannot be read", report.display()))?;
    let peak = serde_json::from_str::<serde_json::Value>(&text)
        .ok()
        .and_then(|report| report.get("peak_logical_bytes")?.as_u64());
    let Some(peak) = peak else {
        bail!(
            "--of {}: that is no report of `terrace run --report` with a `peak_logical_bytes`; run the program once with --observe --report FILE.json",
            report.display()
        )
    };
    Ok(Dram::Bytes(((peak as f64 * share) as u64).max(MIN_BUDGET_BYTES)))
}

/// Less than this is meant as something else, bytes.
const MIB: u64 = 1 << 20;

/// Refuses a number that was hardly meant as bytes.
pub fn refuse_bare_number(dram: Dram) -> Result<()> {
    match dram {
        Dram::Bytes(count @ 1..=100) => {
            bail!("--dram {count} is {count} bytes; did you mean {count}% or {count}M?")
        }
        Dram::Bytes(count) if count < 64 << 10 && count % 1024 == 0 => {
            let kibi = count >> 10;
            bail!(
                "{count} bytes are too little for --dram; did you mean {kibi}M (not {kibi}k), or {count}M?"
            )
        }
        Dram::Bytes(count) if (101..64 << 10).contains(&count) => {
            bail!("{count} bytes are too little for --dram; did you mean {count}M?")
        }
        Dram::Bytes(count) if (64 << 10..MIB).contains(&count) => {
            bail!("{} are too little for --dram, which takes 1M at least", bytes(count))
        }
        _ => Ok(()),
    }
}

/// The warning about a budget, if there is one.
pub fn warning(dram: Dram) -> Option<String> {
    let Dram::Bytes(budget) = dram else { return None };
    warning_of(budget, doctor::machine_memory(), doctor::lowest_group_limit())
}

fn warning_of(budget: u64, machine: Option<u64>, group: Option<(u64, PathBuf)>) -> Option<String> {
    if budget < START_MIN_BYTES as u64 {
        return Some(format!(
            "--dram {} cannot be kept: what a program uses at the time and Terrace itself (some megabytes in each process) take more; \
             it pays from 64M on",
            bytes(budget)
        ));
    }
    if let Some((limit, file)) = group.filter(|(limit, _)| budget > *limit) {
        return Some(format!(
            "--dram {} is more than this memory group may have ({}, {}): nothing is evicted before the group is full; use less, or a \
             share such as --dram 60%",
            bytes(budget),
            bytes(limit),
            file.display()
        ));
    }
    machine.filter(|machine| budget > *machine).map(|machine| {
        format!(
            "--dram {} is more than this machine has ({}): nothing is evicted for it; use less, or a share such as --dram 60%",
            bytes(budget),
            bytes(machine)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_an_earlier_run_is_a_size() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("r.json");
        let of = |text: &str, dram: Dram| {
            fs::write(&file, text).unwrap();
            of_report(dram, &file).map_err(|error| format!("{error:#}"))
        };
        let earlier = r#"{"peak_logical_bytes": 1000000000}"#;
        assert_eq!(of(earlier, Dram::Share(0.6)), Ok(Dram::Bytes(600_000_000)));
        assert_eq!(
            of(r#"{"peak_logical_bytes": 7}"#, Dram::Share(0.6)),
            Ok(Dram::Bytes(MIN_BUDGET_BYTES))
        );
        assert!(of(earlier, Dram::Bytes(7)).is_err_and(|why| why.contains("needs a share")));
        assert!(of(earlier, Dram::Unlimited).is_err_and(|why| why.contains("needs a share")));
        for text in ["", "[]", "{}", r#"{"peak_logical_bytes": null}"#] {
            assert!(
                of(text, Dram::Share(0.5)).is_err_and(|why| why.contains("--observe --report")),
                "{text}"
            );
        }
        assert!(of_report(Dram::Share(0.5), Path::new("/nonexistent/r.json")).is_err());
    }

    #[test]
    fn a_budget_that_cannot_be_meant_is_remarked_on() {
        let of = |budget: u64, group: Option<u64>| {
            warning_of(budget, Some(16 << 30), group.map(|limit| (limit, "/g".into())))
        };
        assert_eq!(of(64 << 20, None), None);
        assert_eq!(of(16 << 30, None), None);
        assert_eq!(of(2 << 30, Some(2 << 30)), None);
        let starts = |said: Option<String>, with: &str| {
            assert!(said.as_deref().is_some_and(|said| said.starts_with(with)), "{said:?}")
        };
        starts(of(1 << 20, None), "--dram 1.0M cannot be kept");
        assert!(
            refuse_bare_number(Dram::Bytes(60))
                .is_err_and(|why| why.to_string().contains("did you mean 60% or 60M?"))
        );
        assert!(
            refuse_bare_number(Dram::Bytes(4096))
                .is_err_and(|why| why.to_string().contains("did you mean 4M (not 4k), or 4096M?"))
        );
        assert!(
            refuse_bare_number(Dram::Bytes(1 << 20)).is_ok()
                && refuse_bare_number(Dram::Share(0.6)).is_ok()
        );
        starts(of(20 << 40, None), "--dram 20.0T is more than this machine has (16.0G)");
        starts(
            of(3 << 30, Some(2 << 30)),
            "--dram 3.0G is more than this memory group may have (2.0G, /g)",
        );
        assert_eq!(warning(Dram::Unlimited).or(warning(Dram::Share(0.01))), None);
    }
}
