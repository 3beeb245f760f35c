//! A row store's transactions, alone and on rows that move all the while. The latter goes on under
//! eviction and faults in `tests/tests/objects_move_under_eviction.rs`.
#![cfg(not(loom))]

#[path = "torture/rows.rs"]
mod torture;

use terrace_objects::rows::Aborted;
use torture::{account, rows, transfers_and_audits};

#[test]
fn conflicts_are_told_and_change_nothing() {
    let rows = rows();
    let reader = rows.heap().reader();
    let mut first = rows.begin(&reader);
    first.put(1, account(5, 0));
    first.put(2, account(6, 0));
    first.commit().unwrap();
    let (mut late, mut early) = (rows.begin(&reader), rows.begin(&reader));
    assert_eq!(late.get(1), Some(account(5, 0)));
    late.put(2, account(7, 0));
    late.put(3, account(8, 0));
    early.put(1, account(9, 0));
    early.commit().unwrap();
    assert_eq!(late.commit(), Err(Aborted::Conflict));
    let mut after = rows.begin(&reader);
    assert_eq!(
        [1, 2, 3].map(|key| after.get(key)),
        [Some(account(9, 0)), Some(account(6, 0)), None]
    );
    after.commit().unwrap();
}

#[test]
fn what_was_not_there_must_still_not_be_there() {
    let rows = rows();
    let reader = rows.heap().reader();
    let mut first = rows.begin(&reader);
    assert_eq!(first.get(7), None);
    first.put(8, account(1, 0));
    rows.run(&reader, |other| other.put(7, account(2, 0))).unwrap();
    assert_eq!(first.commit(), Err(Aborted::Conflict));
}

/// A row that is removed and put again is another one, whatever its words are.
#[test]
fn a_row_that_comes_again_is_not_the_one_before() {
    let rows = rows();
    let reader = rows.heap().reader();
    rows.run(&reader, |all| all.put(1, account(1, 0))).unwrap();
    let mut first = rows.begin(&reader);
    assert_eq!(first.get(1), Some(account(1, 0)));
    first.put(2, account(1, 0));
    rows.run(&reader, |all| all.delete(1)).unwrap();
    rows.run(&reader, |all| all.put(1, account(1, 0))).unwrap();
    assert_eq!(first.commit(), Err(Aborted::Conflict));
}

#[test]
fn transfers_and_audits_while_rows_move() {
    transfers_and_audits();
}
