//! Faults: how a page is restored, and which pages are restored before they are touched.

pub(crate) mod buffers;
pub(crate) mod coalesce;
pub(crate) mod event_queue;
pub(crate) mod events;
pub(crate) mod fault_cost;
pub(crate) mod following;
pub(crate) mod inline;
pub(crate) mod read_loop;
pub(crate) mod readahead;
pub(crate) mod restore;
pub(crate) mod run_tools;
pub(crate) mod settle;
pub(crate) mod streams;
