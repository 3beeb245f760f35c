//! Budgets that cannot mean what they say: less than can be reached, more than there is.

use crate::doctor;
use crate::quantity::bytes;
use std::path::PathBuf;
use terrace_pager::pager::START_MIN_BYTES;
use terrace_pager::settings::Dram;

/// What is to be said of a budget, if anything.
pub fn remark(dram: Dram) -> Option<String> {
    let Dram::Bytes(budget) = dram else { return None };
    remark_on(budget, doctor::machine_memory(), doctor::lowest_group_limit())
}

fn remark_on(budget: u64, machine: Option<u64>, group: Option<(u64, PathBuf)>) -> Option<String> {
    if budget < START_MIN_BYTES as u64 {
        let meant = if (1..=100).contains(&budget) { format!("did you mean {budget}% or {budget}M? ") } else { String::new() };
        return Some(format!(
            "--dram {} cannot be kept: what a program uses at the time and Terrace itself (some megabytes in each process) take more; \
             {meant}it pays from 64M on",
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
    fn a_budget_that_cannot_be_meant_is_remarked_on() {
        let of = |budget: u64, group: Option<u64>| remark_on(budget, Some(16 << 30), group.map(|limit| (limit, "/g".into())));
        assert_eq!(of(64 << 20, None), None);
        assert_eq!(of(16 << 30, None), None);
        assert_eq!(of(2 << 30, Some(2 << 30)), None);
        let starts = |said: Option<String>, with: &str| assert!(said.as_deref().is_some_and(|said| said.starts_with(with)), "{said:?}");
        starts(of(1 << 20, None), "--dram 1.0M cannot be kept");
        assert!(of(60, None).is_some_and(|said| said.contains("did you mean 60% or 60M?")));
        starts(of(20 << 40, None), "--dram 20.0T is more than this machine has (16.0G)");
        starts(of(3 << 30, Some(2 << 30)), "--dram 3.0G is more than this memory group may have (2.0G, /g)");
        assert_eq!(remark(Dram::Unlimited).or(remark(Dram::Share(0.01))), None);
    }
}
