//! What is recorded, as the environment says it.

use std::path::PathBuf;
use terrace_trace::cache::Cache;

/// What becomes of the misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A summary at the end: how many pages hold which share of the misses.
    Pages,
    /// The misses one by one, by page (`terrace_trace::accesses`).
    Trace,
    /// The misses one by one, by object, and all objects (`terrace_trace::objects`).
    Objects,
}

/// When misses begin to count. The cache is filled from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Misses count from the program's beginning.
    Now,
    /// Misses count once the program calls `terrace_record_start`.
    Call,
    /// Misses count from the first SIGUSR2 on. The second ends the recording.
    Signal,
    /// Misses count after this many accesses.
    After(u64),
}

/// All settings of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `TERRACE_RECORD`, before the colon.
    pub mode: Mode,
    /// File of the recording: `TERRACE_RECORD`, after the colon.
    pub file: PathBuf,
    /// `TERRACE_RECORD_CACHE`: bytes of the modelled cache; 0: there is none, every access is
    /// recorded.
    pub cache_bytes: usize,
    /// `TERRACE_RECORD_START`.
    pub start: Start,
    /// `TERRACE_RECORD_DEPTH`: return addresses that make a context.
    pub depth: usize,
    /// `TERRACE_RECORD_PERIOD`: one of this many misses is written, at random; 1: all. Summaries
    /// count all.
    pub period: u64,
    /// `TERRACE_RECORD_LIMIT`: bytes that a trace may grow to.
    pub limit: u64,
}

/// Bytes of the modelled cache where nothing is said: as in the benchmark of objects
/// (`terrace-bench objects`).
const CACHE_BYTES: usize = 4 << 20;
/// Return addresses of a context where nothing is said: as many as `terrace run --allocator
/// context` looks at.
const DEPTH: usize = 4;
/// Bytes that a trace may grow to where nothing is said: some 400 million misses.
const LIMIT: u64 = 1 << 30;
/// The most frames of a context.
pub const DEPTH_MAX: usize = 16;

impl Settings {
    /// Reads the settings by name; `None` if nothing is to be recorded.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Settings>, String> {
        let Some(what) = get("TERRACE_RECORD").filter(|what| !what.is_empty()) else {
            return Ok(None);
        };
        let wrong = |why: &str| {
            format!(
                "TERRACE_RECORD={what} {why}: write MODE:FILE, with MODE pages, trace or objects"
            )
        };
        let (mode, file) = what.split_once(':').ok_or_else(|| wrong("has no colon"))?;
        if file.is_empty() {
            return Err(wrong("names no file"));
        }
        let mode = match mode {
            "pages" => Mode::Pages,
            "trace" => Mode::Trace,
            "objects" => Mode::Objects,
            _ => return Err(wrong("has an unknown mode")),
        };
        let text = |name: &str| get(name).filter(|text| !text.is_empty());
        let cache_bytes = match text("TERRACE_RECORD_CACHE") {
            None => CACHE_BYTES,
            Some(text) => match size(&text) {
                Some(bytes)
                    if bytes == 0
                        || (bytes.is_power_of_two()
                            && (Cache::BYTES_MIN as u64..=1 << 40).contains(&bytes)) =>
                {
                    bytes as usize
                }
                _ => {
                    return Err(format!(
                        "TERRACE_RECORD_CACHE={text}: write a power of two from 2K on, such as 4M, or 0 for no cache"
                    ));
                }
            },
        };
        let start = match text("TERRACE_RECORD_START").as_deref() {
            None | Some("now") => Start::Now,
            Some("call") => Start::Call,
            Some("signal") => Start::Signal,
            Some(text) => match text.parse() {
                Ok(accesses) => Start::After(accesses),
                Err(_) => {
                    return Err(format!(
                        "TERRACE_RECORD_START={text}: write now, call, signal, or a number of accesses"
                    ));
                }
            },
        };
        let depth = match text("TERRACE_RECORD_DEPTH") {
            None => DEPTH,
            Some(text) => match text.parse() {
                Ok(depth) if (1..=DEPTH_MAX).contains(&depth) => depth,
                _ => {
                    return Err(format!(
                        "TERRACE_RECORD_DEPTH={text}: write a number of frames from 1 to {DEPTH_MAX}"
                    ));
                }
            },
        };
        let period = match text("TERRACE_RECORD_PERIOD") {
            None => 1,
            Some(text) => match text.parse() {
                Ok(period) if (1..=1 << 32).contains(&period) => period,
                _ => {
                    return Err(format!(
                        "TERRACE_RECORD_PERIOD={text}: write a number from 1 on: one of so many misses is written"
                    ));
                }
            },
        };
        let limit = match text("TERRACE_RECORD_LIMIT") {
            None => LIMIT,
            Some(text) => size(&text).ok_or_else(|| {
                format!("TERRACE_RECORD_LIMIT={text}: write a size, such as 512M")
            })?,
        };
        Ok(Some(Settings { mode, file: file.into(), cache_bytes, start, depth, period, limit }))
    }
}

/// A number of bytes: `4096`, `64K`, `4M`, `1G`.
fn size(text: &str) -> Option<u64> {
    let shift = match text.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        Settings::read(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn settings_are_read() {
        assert_eq!(read(&[]), Ok(None));
        let plain = Settings {
            mode: Mode::Pages,
            file: "a:b.json".into(),
            cache_bytes: 4 << 20,
            start: Start::Now,
            depth: 4,
            period: 1,
            limit: 1 << 30,
        };
        assert_eq!(read(&[("TERRACE_RECORD", "pages:a:b.json")]), Ok(Some(plain.clone())));
        let all = [
            ("TERRACE_RECORD", "objects:a:b.json"),
            ("TERRACE_RECORD_CACHE", "32M"),
            ("TERRACE_RECORD_START", "5000"),
            ("TERRACE_RECORD_DEPTH", "10"),
            ("TERRACE_RECORD_PERIOD", "8"),
            ("TERRACE_RECORD_LIMIT", "64K"),
        ];
        let expected = Settings {
            mode: Mode::Objects,
            cache_bytes: 32 << 20,
            start: Start::After(5000),
            depth: 10,
            period: 8,
            limit: 64 << 10,
            ..plain
        };
        assert_eq!(read(&all), Ok(Some(expected)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (name, value, hint) in [
            ("TERRACE_RECORD", "pages", "no colon"),
            ("TERRACE_RECORD", "pages:", "no file"),
            ("TERRACE_RECORD", "page:x", "unknown mode"),
            ("TERRACE_RECORD_CACHE", "3M", "power of two"),
            ("TERRACE_RECORD_CACHE", "99999999999999999999G", "power of two"),
            ("TERRACE_RECORD_START", "later", "now, call, signal"),
            ("TERRACE_RECORD_DEPTH", "0", "1 to 16"),
            ("TERRACE_RECORD_PERIOD", "0", "from 1 on"),
            ("TERRACE_RECORD_LIMIT", "much", "512M"),
        ] {
            let error = read(&[(name, value), ("TERRACE_RECORD", "pages:x")]).unwrap_err();
            assert!(error.contains(hint) && error.contains(value), "{error}");
        }
    }
}
