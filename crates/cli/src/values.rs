//! Values on the command line that several verbs take: each is checked before anything happens.

use terrace_tiers::{FileMedium, MediumKind, Nodes, TierKind, parse_tiers, presets};

/// Most seconds of anything: a day.
const SECONDS_MOST: f64 = 86_400.0;

/// A number from `least` to `most`.
pub fn number_within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("write a number from {least} to {most}")),
    }
}

/// A percentage, with its sign or without, as a share from 0 to 1.
pub fn percent(text: &str) -> Result<f64, String> {
    number_within(text.strip_suffix('%').unwrap_or(text), 0.0, 100.0).map(|percent| percent / 100.0)
}

/// Seconds, 0 among them.
pub fn seconds(text: &str) -> Result<f64, String> {
    number_within(text, 0.0, SECONDS_MOST)
}

/// Seconds, at least 0.01: what is done for that long must be possible.
pub fn some_seconds(text: &str) -> Result<f64, String> {
    number_within(text, 0.01, SECONDS_MOST)
}

/// A size in bytes (512M, 4G: powers of 1024).
pub fn size(text: &str) -> Result<u64, String> {
    terrace_control::settings::parse_size(text).map_err(|error| error.to_string())
}

/// Accepts a list of tiers that `terrace_tiers` understands and whose directories and nodes are fit
/// for use, and keeps it as it was written; a list's name becomes the list.
pub fn tiers(text: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    for tier in parse_tiers(text)? {
        match &tier.kind {
            TierKind::Compressed { medium: MediumKind::File { directory }, .. } => {
                FileMedium::check(directory)
                    .map_err(|error| format!("`{}`: {error}", tier.name))?;
            }
            TierKind::Node { node }
            | TierKind::Compressed { medium: MediumKind::Node { node }, .. } => Nodes::of_machine()
                .check(*node)
                .map_err(|error| format!("`{}`: {error}", tier.name))?,
            _ => {}
        }
    }
    Ok(presets::by_name(text.trim()).map_or_else(|| text.to_owned(), |preset| preset.tiers))
}

/// A knob from 0 to 1.
pub fn knob(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(alpha) if (0.0..=1.0).contains(&alpha) => Ok(alpha),
        _ => Err("write a number from 0 (all saving) to 1 (all speed)".into()),
    }
}
