//! The manual page has each option that `-h` lists, and no other long one. It is well formed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_testkit::skipping::skip;

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../man/terrace-kv.1")
}

/// The options that a text names: words that begin with a dash. Names with an underscore are those
/// of `-o`, and of commands.
fn options(text: &str) -> BTreeSet<String> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let words = text.split(|c: char| !is_of_word(c));
    let is_option = |word: &str| {
        let has_name = !word.trim_matches('-').is_empty();
        word.contains('_') || (word.starts_with('-') && has_name)
    };
    words.filter(|word| is_option(word)).map(str::to_owned).collect()
}

#[test]
fn the_manual_page_has_the_options_of_the_help() {
    let asked = Command::new(env!("CARGO_BIN_EXE_terrace-kv")).arg("-h").output();
    let help = options(&String::from_utf8_lossy(&asked.expect("the server starts").stdout));
    assert!(help.len() > 60 && help.contains("--dram") && help.contains("ssl_key"), "{help:?}");
    // The page has its dashes as roff wants them.
    let text = std::fs::read_to_string(page()).expect("the page is there").replace("\\-", "-");
    let page = options(&text);
    let missing: Vec<_> = help.difference(&page).collect();
    assert!(missing.is_empty(), "only -h has {missing:?}");
    let others: Vec<_> = page.difference(&help).filter(|word| word.starts_with("--")).collect();
    assert!(others.is_empty(), "only the page has {others:?}");
}

#[test]
fn the_manual_page_is_well_formed() {
    let shown = Command::new("groff").args(["-man", "-ww", "-Tutf8"]).arg(page()).output();
    let Ok(shown) = shown else {
        return skip("groff is not installed: apt-get install groff");
    };
    let said = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success() && said.is_empty(), "{said}");
}
