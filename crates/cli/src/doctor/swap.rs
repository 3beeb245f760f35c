//! What the kernel itself does with cold pages: swap devices, zram, zswap. Terrace needs none of
//! them; they work beside it, and may compress a second time what Terrace has compressed. Where
//! they are, they can be a tier of Terrace's.

use super::row::{Row, Status, chosen, read};
use crate::quantity::bytes;
use std::fs;
use std::path::Path;
use terrace_tiers::{SwapKind, SwapView, swap_devices};

/// Rows: swap, zram, zswap, and the tier over them.
pub fn rows() -> Vec<Row> {
    let swaps = read("/proc/swaps");
    vec![
        match &swaps {
            Ok(text) => swap(text),
            // A kernel without swap has no such file.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => swap(""),
            Err(error) => Row::unreadable("swap", "/proc/swaps", error),
        },
        zram(Path::new("/sys/block"), swaps.as_deref().unwrap_or("")),
        zswap(Path::new("/sys/module/zswap/parameters")),
        tier(&SwapView::of_machine()),
    ]
}

fn swap(swaps: &str) -> Row {
    let name = "swap";
    let all: Vec<String> = swap_devices(swaps)
        .map(|d| format!("{} {} ({} used)", d.path, bytes(d.size_bytes), bytes(d.used_bytes)))
        .collect();
    if all.is_empty() {
        return Row::ok(
            name,
            "none",
            "the kernel itself moves no anonymous memory out; Terrace's compressed tiers need no swap",
        );
    }
    Row::ok(name, all.join(", "), "under pressure the kernel swaps on its own, beside Terrace")
}

/// Whether `--tiers dram,swap` would do anything here.
fn tier(view: &SwapView) -> Row {
    let name = "swap tier";
    let room = format!(
        "over {}: {} of {} free",
        view.name,
        bytes(view.free_bytes),
        bytes(view.total_bytes)
    );
    let more = "make more swap, or end what uses it";
    match view.kind {
        SwapKind::None => Row::new(
            name,
            Status::Warn,
            "no swap to put pages into",
            "--tiers dram,swap moves nothing, and --tiers auto uses Terrace's own tiers",
            "only if you want that tier: modprobe zram, zramctl --find --size 4G --algorithm lz4, then mkswap and swapon of the device it names",
        ),
        _ if view.room_bytes() == 0 => Row::new(
            name,
            Status::Warn,
            room,
            "Terrace leaves a quarter of all swap free, so it puts nothing there",
            more,
        ),
        SwapKind::Zram => Row::ok(
            name,
            room,
            "--tiers dram,swap puts cold pages there; the kernel brings them back itself",
        ),
        SwapKind::Zswap => Row::ok(
            name,
            room,
            "--tiers dram,swap puts cold pages there; what zswap's pool has no room for goes on to the disk",
        ),
        SwapKind::Disk => Row::ok(
            name,
            room,
            "--tiers dram,swap puts cold pages on that disk: for what is hardly ever touched; --tiers auto leaves it alone",
        ),
    }
}

fn zram(block: &Path, swaps: &str) -> Row {
    let name = "zram";
    let Ok(entries) = fs::read_dir(block) else {
        return Row::new(name, Status::Warn, "cannot list block devices", "not known", "");
    };
    let mut found: Vec<String> =
        entries.flatten().filter_map(|entry| device(&entry.path(), swaps)).collect();
    found.sort();
    if found.is_empty() {
        return Row::ok(name, "no device", "Terrace does not need one");
    }
    let swapped = found.iter().any(|text| text.ends_with("used as swap"));
    let consequence = if swapped {
        "under pressure the kernel compresses on its own, beside Terrace"
    } else {
        "not used as swap, so it plays no part"
    };
    Row::ok(name, found.join("; "), consequence)
}

fn device(directory: &Path, swaps: &str) -> Option<String> {
    let name = directory.file_name()?.to_str()?.to_owned();
    name.strip_prefix("zram")?.parse::<u32>().ok()?;
    let size: u64 =
        read(directory.join("disksize")).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if size == 0 {
        return Some(format!("{name} not set up"));
    }
    let algorithms = read(directory.join("comp_algorithm")).unwrap_or_default();
    let algorithm = chosen(&algorithms).unwrap_or("unknown codec");
    // mm_stat: original size, compressed size, memory used in all, …
    let used = read(directory.join("mm_stat"))
        .ok()
        .and_then(|text| text.split_whitespace().nth(2)?.parse().ok())
        .unwrap_or(0);
    let swap =
        swap_devices(swaps).any(|device| device.path.rsplit('/').next() == Some(name.as_str()));
    let word = if swap { "used as swap" } else { "not used as swap" };
    Some(format!("{name} {} {algorithm}, {} of memory, {word}", bytes(size), bytes(used)))
}

fn zswap(parameters: &Path) -> Row {
    let name = "zswap";
    let Ok(enabled) = read(parameters.join("enabled")) else {
        return Row::ok(name, "not in this kernel", "Terrace does not need it");
    };
    if enabled != "Y" {
        return Row::ok(name, "off", "Terrace does not need it");
    }
    let compressor =
        read(parameters.join("compressor")).unwrap_or_else(|_| "an unknown codec".into());
    Row::ok(
        name,
        format!("on, {compressor}"),
        "what the kernel swaps is compressed first; Terrace's own compressed pages gain nothing from that",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWAPS: &str = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition\t1048576\t2048\t100\n/my file with blanks file 1024 0 -2\n";

    #[test]
    fn swap_devices_are_listed() {
        assert_eq!(swap(SWAPS).found, "/dev/zram0 1.0G (2.0M used), /my 1.0M (0B used)");
        assert_eq!(swap("Filename\n").found, "none");
    }

    #[test]
    fn the_tier_says_over_what_it_is() {
        let view = |kind, free: u64| SwapView {
            kind,
            name: "/dev/x (lz4)".into(),
            total_bytes: 4 << 20,
            free_bytes: free << 20,
            memory_bytes: None,
        };
        let row = tier(&view(SwapKind::Zram, 3));
        assert_eq!(
            (row.status, row.found.as_str()),
            (Status::Ok, "over /dev/x (lz4): 3.0M of 4.0M free")
        );
        assert!(tier(&view(SwapKind::Disk, 4)).consequence.contains("disk"));
        let full = tier(&view(SwapKind::Zswap, 1));
        assert!(full.status == Status::Warn && !full.fix.is_empty());
        assert!(tier(&SwapView::default()).fix.contains("swapon"));
    }

    #[test]
    fn zram_tells_its_use() {
        let scratch = tempfile::tempdir().unwrap();
        for (name, size) in [("zram0", "1073741824"), ("zram1", "0"), ("sda", "5"), ("zramX", "5")]
        {
            let device = scratch.path().join(name);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("disksize"), size).unwrap();
            fs::write(device.join("comp_algorithm"), "lzo [lz4] zstd\n").unwrap();
            fs::write(device.join("mm_stat"), " 8192 100 12288 0 0 0 0 0 0\n").unwrap();
        }
        assert_eq!(
            zram(scratch.path(), SWAPS).found,
            "zram0 1.0G lz4, 12.0K of memory, used as swap; zram1 not set up"
        );
        assert!(zram(scratch.path(), "").found.contains("not used as swap"));
        assert_eq!(zram(&scratch.path().join("sda"), "").found, "no device");
    }

    #[test]
    fn zswap_tells_its_codec() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(zswap(scratch.path()).found, "not in this kernel");
        fs::write(scratch.path().join("enabled"), "Y\n").unwrap();
        fs::write(scratch.path().join("compressor"), "zstd\n").unwrap();
        assert_eq!(zswap(scratch.path()).found, "on, zstd");
    }
}
