//! Any line is parsed without a crash, and what is parsed keeps the protocol's bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_kv::protocol::meta::MetaCommand;
use terrace_kv::protocol::{KEY_MAX, Request, text};

fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|&byte| byte == b'\n') {
        match text::parse(line) {
            Ok(Request::Store(store)) => {
                assert!((1..=KEY_MAX).contains(&store.key.len()) && store.len <= i32::MAX as usize);
            }
            Ok(Request::Delete { key, .. } | Request::Touch { key, .. }) => {
                assert!((1..=KEY_MAX).contains(&key.len()));
            }
            Ok(Request::Meta(meta)) => {
                assert!(meta.key.len() <= KEY_MAX);
                if let MetaCommand::Set(len) = meta.command {
                    assert!(len <= i32::MAX as usize);
                }
            }
            _ => {}
        }
    }
});
