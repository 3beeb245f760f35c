//! `terrace report utilisation`: how much of the bytes of hot pages is hot, over all and by
//! allocation site. It also tells what would be saved if hot objects lay side by side.
//!
//! An object is hot in a window of time if it was accessed in it; of one that is larger than a
//! page, the pages that were. Utilisation is hot bytes ÷ bytes of the pages that hold some (OBASE,
//! arXiv 2603.00378, §2). A page with hot objects of several sites is each one's by its share of
//! the hot bytes there. Bytes that one object had after another within a window count once.
//!
//! Of samples, which know no objects, `sampled.rs` tells it.

use crate::quantity::{bytes, share};
use crate::report::args::UtilisationArguments;
use crate::report::sites::Symbols;
use crate::report::{recording, sampled};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use terrace_trace::accesses::{self, Clock};
use terrace_trace::file::Decoder;
use terrace_trace::objects::{Event, Reader};

/// Unit in which hot parts of large objects are counted, bytes.
const PART: u64 = 4096;
/// Pages that are told of, bytes.
pub(super) const PAGES: [u64; 2] = [4096, 2 << 20];
/// Parts of the data for which hits are told.
pub(super) const BUDGETS: [f64; 5] = [0.05, 0.1, 0.2, 0.3, 0.5];
/// Windows of a recording whose clock counts accesses, unless it is said how long one is.
const WINDOWS: u64 = 10;
/// Length of a window, us, where the clock is time (OBASE's).
const WINDOW_US: u64 = 10_000_000;
/// Windows of a recording at most: shorter ones say nothing.
const WINDOWS_MOST: u64 = 10_000;
/// The picture's bars together, and room beside and above them, in its units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 40.0;
/// Colours of the picture, by the reader's own choice of light or dark.
const STYLE: &str = "<style>svg{background:#fff}text{fill:#1c2024}.pages{fill:#bcd}.hot{fill:#246}\
    .about{fill:none;stroke:#c50}\
    @media(prefers-color-scheme:dark){svg{background:#15181b}text{fill:#e4e7ea}.pages{fill:#456}\
    .hot{fill:#9cf}.about{stroke:#fa5}}</style>";
/// Sites that are printed.
const SITES_SHOWN: usize = 20;
/// Column at which the names of a site's functions begin.
const NAME_COLUMN: usize = 37;

/// A live object.
#[derive(Clone, Copy)]
struct Object {
    address: u64,
    bytes: u64,
    context: u32,
}

/// A part of an object: the object's number, and which part of [`PART`] bytes.
type Part = (u32, u64);

/// Accesses within one window, and what they were to.
#[derive(Default)]
struct Window {
    parts: HashMap<Part, (Object, u64)>,
}

/// What was found for one page size.
#[derive(Clone, Debug, Default)]
struct Found {
    /// Per window, hot bytes and bytes of hot pages.
    windows: Vec<(u64, u64)>,
    /// Sums over windows by context.
    sites: HashMap<u32, (f64, f64)>,
    /// Sums of accesses that hit, by budget: pages as they are, and objects side by side.
    hits: [(f64, f64); BUDGETS.len()],
}

/// What a recording tells.
struct Told {
    command: String,
    contexts: Vec<Vec<String>>,
    window: u64,
    found: [Found; PAGES.len()],
    accesses: u64,
    live_bytes: u64,
}

/// Bytes that were accessed, from `start` to before `end`.
struct Range {
    start: u64,
    end: u64,
    context: u32,
    accesses: u64,
}

impl Range {
    fn of(((_, part), (object, accesses)): (&Part, &(Object, u64))) -> Range {
        let start = object.address.saturating_add(part * PART);
        let end =
            object.address.saturating_add(object.bytes.max(1)).min(start.saturating_add(PART));
        Range { start, end, context: object.context, accesses: *accesses }
    }
}

/// A page with hot bytes.
#[derive(Default)]
struct Page {
    /// Hot bytes, each once.
    hot: u64,
    /// End of the last of the hot bytes.
    end: u64,
    accesses: f64,
    /// Bytes of hot objects by context, also of some that had the same address one after another.
    sites: BTreeMap<u32, u64>,
}

/// Pages with hot bytes, by number. Ranges are in the order of their beginnings.
fn pages(ranges: &[Range], page: u64) -> BTreeMap<u64, Page> {
    let mut pages: BTreeMap<u64, Page> = BTreeMap::new();
    for range in ranges.iter().filter(|range| range.start < range.end) {
        for at in range.start / page..=(range.end - 1) / page {
            let start = range.start.max(at * page);
            let end = range.end.min((at + 1).saturating_mul(page));
            let of = pages.entry(at).or_default();
            of.hot += end.saturating_sub(start.max(of.end));
            of.end = of.end.max(end);
            let share = (end - start) as f64 / (range.end - range.start) as f64;
            of.accesses += range.accesses as f64 * share;
            *of.sites.entry(range.context).or_default() += end - start;
        }
    }
    pages
}

/// Accesses and bytes of what would lie side by side: of hot objects, where those that had the same
/// bytes one after another are one. Ranges are in the order of their beginnings.
fn apart(ranges: &[Range]) -> Vec<(f64, f64)> {
    let mut things: Vec<(u64, u64, u64)> = Vec::new();
    for range in ranges {
        match things.last_mut() {
            Some((_, end, accesses)) if range.start < *end => {
                *end = range.end.max(*end);
                *accesses += range.accesses;
            }
            _ => things.push((range.start, range.end, range.accesses)),
        }
    }
    things.iter().map(|(start, end, accesses)| (*accesses as f64, (end - start) as f64)).collect()
}

impl Window {
    fn access(&mut self, number: u32, object: Object, offset: u64) {
        let part = offset.min(object.bytes.saturating_sub(1)) / PART;
        self.parts.entry((number, part)).or_insert((object, 0)).1 += 1;
    }

    /// What was accessed, by address.
    fn ranges(&self) -> Vec<Range> {
        let mut ranges: Vec<_> = self.parts.iter().map(Range::of).collect();
        ranges.sort_by_key(|range| (range.start, range.end));
        ranges
    }

    fn end(&mut self, found: &mut [Found; PAGES.len()], live_bytes: u64) {
        let ranges = self.ranges();
        for (found, page) in found.iter_mut().zip(PAGES) {
            let pages = pages(&ranges, page);
            let mut hot = 0;
            let mut accesses_of_pages = Vec::new();
            for at in pages.values() {
                hot += at.hot;
                accesses_of_pages.push((at.accesses, page as f64));
                let all: u64 = at.sites.values().sum();
                for (site, bytes) in &at.sites {
                    let share = *bytes as f64 / all as f64;
                    let of = found.sites.entry(*site).or_default();
                    of.0 += at.hot as f64 * share;
                    of.1 += page as f64 * share;
                }
            }
            found.windows.push((hot, pages.len() as u64 * page));
            let budgets = BUDGETS.map(|part| part * live_bytes as f64);
            let as_is = hits(accesses_of_pages, &budgets);
            let apart = hits(apart(&ranges), &budgets);
            for (sum, (as_is, apart)) in found.hits.iter_mut().zip(as_is.into_iter().zip(apart)) {
                sum.0 += as_is;
                sum.1 += apart;
            }
        }
        self.parts.clear();
    }
}

/// Share of accesses that the densest things meet that fit into each budget. `things` are their
/// accesses and bytes.
pub(super) fn hits(mut things: Vec<(f64, f64)>, budgets: &[f64]) -> Vec<f64> {
    let all: f64 = things.iter().map(|(accesses, _)| accesses).sum();
    things.sort_by(|a, b| (b.0 / b.1).total_cmp(&(a.0 / a.1)));
    let within = |budget: f64| {
        let (mut taken, mut hit) = (0.0, 0.0);
        for (accesses, bytes) in &things {
            // Of what does not fit whole, a part is taken: with many things the difference is none.
            let fits = ((budget - taken) / bytes).clamp(0.0, 1.0);
            taken += bytes * fits;
            hit += accesses * fits;
        }
        hit / all.max(1.0)
    };
    budgets.iter().map(|budget| within(*budget)).collect()
}

/// `terrace report utilisation`.
pub fn show(arguments: &UtilisationArguments) -> Result<u8> {
    let shown = arguments.file.display().to_string();
    let magic = recording::magic(&arguments.file).with_context(|| shown.clone())?;
    let (text, svg, status) = if magic == accesses::MAGIC {
        let (told, status) = sampled::read(arguments).with_context(|| shown.clone())?;
        let text = if arguments.json { format!("{:#}\n", told.json()) } else { told.text() };
        (text, told.svg(), status)
    } else {
        let (told, status) = read(arguments).with_context(|| shown.clone())?;
        let mut symbols = Symbols::default();
        let text = match arguments.json {
            true => format!("{:#}\n", told.json(&mut symbols)),
            false => told.text(&mut symbols),
        };
        (text, told.svg(), status)
    };
    if let Some(path) = &arguments.svg {
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    // A closed standard output is no error of ours.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(status)
}

/// Where windows end, once accesses are counted.
struct Windows {
    length: u64,
    ends: Option<u64>,
}

impl Windows {
    /// Ends the window that is over when the clock is at `now`.
    fn pass(&mut self, now: u64, live: u64, window: &mut Window, found: &mut [Found; PAGES.len()]) {
        let Some(end) = self.ends.filter(|end| now >= *end) else { return };
        if !window.parts.is_empty() {
            window.end(found, live);
        }
        self.ends = Some(end + ((now - end) / self.length + 1) * self.length);
    }
}

/// Length of a window, of a recording that ends when its clock is at `end`.
pub(super) fn window_length(asked: Option<u64>, clock: Clock, end: u64) -> Result<u64> {
    let length = match (asked, clock) {
        (Some(0), _) => bail!("--window 0: a window is of one access, or 1 us, at least"),
        (Some(length), _) => length,
        (None, Clock::Us) => WINDOW_US.max(end.div_ceil(WINDOWS_MOST)),
        (None, Clock::Accesses) => (end / WINDOWS).max(1),
    };
    if end / length > WINDOWS_MOST {
        bail!("--window {length}: the recording would have more than {WINDOWS_MOST} of them");
    }
    Ok(length)
}

/// What is told, and the exit status.
fn read(arguments: &UtilisationArguments) -> Result<(Told, u8)> {
    let reader = Reader::open(&arguments.file).context(
        "accesses by object are needed, as a program writes that is built with the recorder, or \
         samples of any program, by `terrace record --accesses --unit 64` (docs/recording.md)",
    )?;
    let length = window_length(arguments.window, reader.header.clock, reader.end_clock())?;
    let mut told = Told {
        command: reader.header.command.join(" "),
        contexts: reader.contexts().to_vec(),
        window: length,
        found: Default::default(),
        accesses: 0,
        live_bytes: 0,
    };
    let mut incomplete = reader.incomplete().map(str::to_owned);
    let (mut decoder, mut events) = (Decoder::new(), Vec::new());
    let (mut objects, mut window): (Vec<Object>, _) = (Vec::new(), Window::default());
    let (mut live, mut counted, mut windows) = (0u64, 0u64, Windows { length, ends: None });
    // Where the clock counts accesses it is known between births, too.
    let accesses_count = reader.header.clock == Clock::Accesses && reader.header.cache.is_none();
    for number in 0..reader.blocks() {
        if let Err(why) = reader.decode(number, &mut decoder, &mut events) {
            incomplete = Some(why);
            break;
        }
        // Where a cache is between, the clock is known at births, deaths and blocks' beginnings
        // only.
        windows.pass(reader.block(number).0, live, &mut window, &mut told.found);
        for event in &events {
            let mut clock = None;
            match *event {
                Event::Born { address, bytes, context, clock: now } => {
                    objects.push(Object { address, bytes, context });
                    live = live.saturating_add(bytes);
                    clock = Some(now);
                }
                Event::Died { object, clock: now } => {
                    let of = objects.get(object as usize).map_or(0, |object| object.bytes);
                    live = live.saturating_sub(of);
                    clock = Some(now);
                }
                Event::Resized { object, bytes, clock: now } => {
                    if let Some(object) = objects.get_mut(object as usize) {
                        let before = std::mem::replace(&mut object.bytes, bytes);
                        live = live.saturating_sub(before).saturating_add(bytes);
                    }
                    clock = Some(now);
                }
                Event::Counting { clock: now } => {
                    windows.ends = Some(now + length);
                    counted = now;
                }
                Event::Access { object, offset, .. } => {
                    told.accesses += 1;
                    counted += reader.header.period;
                    if let Some(known) = objects.get(object as usize) {
                        window.access(object, *known, offset);
                    }
                }
            }
            told.live_bytes = told.live_bytes.max(live);
            counted = counted.max(clock.unwrap_or(0));
            if let Some(now) = if accesses_count { Some(counted) } else { clock } {
                windows.pass(now, live, &mut window, &mut told.found);
            }
        }
    }
    // The last one is not whole, but in a recording of one.
    if told.found[0].windows.is_empty() && !window.parts.is_empty() {
        window.end(&mut told.found, live);
    }
    let status = recording::status(&arguments.file, incomplete.as_deref(), "shown");
    if told.found[0].windows.is_empty() {
        bail!("no access to an object is recorded, so nothing is hot");
    }
    Ok((told, status))
}

impl Found {
    /// Means over all windows: hot bytes and bytes of hot pages.
    fn mean(&self) -> (f64, f64) {
        let count = self.windows.len() as f64;
        let sum = |of: fn(&(u64, u64)) -> u64| self.windows.iter().map(of).sum::<u64>() as f64;
        (sum(|window| window.0) / count, sum(|window| window.1) / count)
    }

    /// Context, and means of hot bytes and of bytes of hot pages; what wastes most first.
    fn sites(&self) -> Vec<(u32, f64, f64)> {
        let count = self.windows.len() as f64;
        let mean = |(site, (hot, pages)): (&u32, &(f64, f64))| (*site, hot / count, pages / count);
        let mut sites: Vec<_> = self.sites.iter().map(mean).collect();
        sites.sort_by(|a, b| (b.2 - b.1).total_cmp(&(a.2 - a.1)));
        sites
    }
}

impl Told {
    /// The functions of a context's frames: the caller of malloc, its caller and so on.
    fn functions(&self, context: u32, symbols: &mut Symbols) -> Vec<String> {
        let frames = self.contexts.get(context as usize);
        frames.into_iter().flatten().map(|frame| symbols.name(frame)).collect()
    }

    fn text(&self, symbols: &mut Symbols) -> String {
        let mut out = format!(
            "utilisation of the pages of `{}`: {} windows of {}\n",
            self.command,
            self.found[0].windows.len(),
            self.window
        );
        for (found, page) in self.found.iter().zip(PAGES) {
            let (hot, pages) = found.mean();
            let _ = writeln!(
                out,
                "  pages of {:>5}: {} of hot objects in {} of pages: {}; side by side they would \
                 take {} less",
                bytes(page),
                bytes(hot as u64),
                bytes(pages as u64),
                share(hot / pages.max(1.0)),
                bytes((pages - hot) as u64)
            );
        }
        out += "  accesses that hit, of pages of 4 KiB, with a budget of the data's bytes:\n";
        for (budget, (as_is, apart)) in BUDGETS.iter().zip(self.mean_hits()) {
            let _ = writeln!(
                out,
                "    {:>4} ({}): {} as it is, {} with hot objects side by side",
                share(*budget),
                bytes((self.live_bytes as f64 * budget) as u64),
                share(as_is),
                share(apart)
            );
        }
        out += "  by allocation site, what wastes most first:\n";
        let sites = self.found[0].sites();
        for (site, hot, pages) in sites.iter().take(SITES_SHOWN) {
            let names = self.functions(*site, symbols);
            let _ = writeln!(
                out,
                "    {:>8} hot in {:>8}: {:>5}  {}",
                bytes(*hot as u64),
                bytes(*pages as u64),
                share(hot / pages.max(1.0)),
                names.first().map_or("?", String::as_str)
            );
            for name in names.iter().skip(1) {
                let _ = writeln!(out, "{:NAME_COLUMN$}← {name}", "");
            }
        }
        if sites.len() > SITES_SHOWN {
            let _ = writeln!(out, "    and {} more (--json)", sites.len() - SITES_SHOWN);
        }
        out
    }

    fn mean_hits(&self) -> Vec<(f64, f64)> {
        let count = self.found[0].windows.len() as f64;
        self.found[0].hits.iter().map(|hits| (hits.0 / count, hits.1 / count)).collect()
    }

    fn json(&self, symbols: &mut Symbols) -> Value {
        let pages = self.found.iter().zip(PAGES).map(|(found, page)| {
            let (hot, pages) = found.mean();
            let sites = found.sites().into_iter().map(|(site, hot, pages)| {
                json!({ "frames": self.contexts.get(site as usize),
                    "functions": self.functions(site, symbols), "hot_bytes": hot as u64,
                    "page_bytes": pages as u64, "utilisation": hot / pages.max(1.0) })
            });
            json!({
                "page_size": page, "hot_bytes": hot as u64, "page_bytes": pages as u64,
                "utilisation": hot / pages.max(1.0), "saved_bytes": (pages - hot) as u64,
                "windows": found.windows.iter().map(|(hot, pages)| {
                    json!({ "hot_bytes": hot, "page_bytes": pages })
                }).collect::<Vec<_>>(),
                "sites": sites.collect::<Vec<_>>(),
            })
        });
        let budgets = BUDGETS.iter().zip(self.mean_hits()).map(|(budget, (as_is, apart))| {
            json!({ "share": budget, "bytes": (self.live_bytes as f64 * budget) as u64,
                "hits": as_is, "hits_side_by_side": apart })
        });
        json!({
            "command": self.command, "window": self.window, "accesses": self.accesses,
            "live_bytes": self.live_bytes, "pages": pages.collect::<Vec<_>>(),
            "budgets": budgets.collect::<Vec<_>>(),
        })
    }

    /// Hot bytes within the bytes of hot pages, window by window.
    fn svg(&self) -> String {
        let bars = |(hot, pages): &(u64, u64)| vec![(*pages as f64, "pages"), (*hot as f64, "hot")];
        let windows: Vec<_> = self.found[0].windows.iter().map(bars).collect();
        picture(
            "bytes of hot pages of 4 KiB (pale), and of hot objects in them (strong), over time",
            &windows,
        )
    }
}

/// A picture of bars over time. Each window has some, which lie over each other: their heights, in
/// bytes, and classes.
pub(super) fn picture(title: &str, windows: &[Vec<(f64, &str)>]) -> String {
    let most = windows.iter().flatten().map(|bar| bar.0).fold(1.0, f64::max);
    let each = WIDTH / windows.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n{STYLE}\n\
         <text x=\"{LEFT}\" y=\"20\">{title}</text>\n\
         <text x=\"4\" y=\"{}\">{}</text>\n<text x=\"4\" y=\"{}\">0</text>\n",
        WIDTH + LEFT + 10.0,
        HEIGHT + TOP + 30.0,
        TOP + 10.0,
        bytes(most as u64),
        TOP + HEIGHT
    );
    for (number, bars) in windows.iter().enumerate() {
        for (value, class) in bars {
            let height = value / most * HEIGHT;
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{height:.1}\" \
                 class=\"{class}\"/>",
                LEFT + number as f64 * each,
                TOP + HEIGHT - height,
                (each * 0.9).max(0.5)
            );
        }
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_trace::accesses::CacheModel;
    use terrace_trace::objects::{BLOCK_EVENTS, Header, Writer};

    fn header(cache: Option<CacheModel>) -> Header {
        Header {
            terrace: String::new(),
            command: vec!["store".into()],
            source: "hooks".into(),
            clock: Clock::Accesses,
            period: 1,
            cache,
            depth: 2,
        }
    }

    /// 64 objects of 64 bytes side by side in each of 100 pages, of which one a page is accessed;
    /// and one object of ten pages, of which two are.
    fn recording(path: &std::path::Path) {
        let mut writer = Writer::create(path, &header(None), u64::MAX).unwrap();
        writer.name_context(vec!["new_item".into(), "main".into()]);
        writer.name_context(vec!["new_table".into()]);
        for number in 0..6400u64 {
            let born =
                Event::Born { address: (1 << 30) + number * 64, bytes: 64, context: 0, clock: 0 };
            writer.append(born, 0).unwrap();
        }
        let large = Event::Born { address: 2 << 30, bytes: 40_960, context: 1, clock: 0 };
        let large = {
            writer.append(large, 0).unwrap();
            6400
        };
        writer.append(Event::Counting { clock: 0 }, 0).unwrap();
        let mut clock = 0;
        for _round in 0..3 {
            for page in 0..100u32 {
                let access = Event::Access { object: page * 64 + 7, offset: 8, written: false };
                writer.append(access, clock).unwrap();
                clock += 1;
            }
            for offset in [4096, 30_000] {
                let access = Event::Access { object: large, offset, written: true };
                writer.append(access, clock).unwrap();
                clock += 1;
            }
        }
        writer.finish(clock).unwrap();
    }

    fn told(window: Option<u64>) -> Result<Told> {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("recording");
        recording(&file);
        read(&UtilisationArguments { file, window, json: false, svg: None }).map(|(told, _)| told)
    }

    #[test]
    fn hot_bytes_and_pages_are_counted_by_site() {
        let told = told(Some(102)).unwrap();
        let (hot, pages) = told.found[0].mean();
        assert_eq!((hot as u64, pages as u64), (100 * 64 + 2 * 4096, 102 * 4096));
        let sites = told.found[0].sites();
        assert_eq!((sites[0].0, sites[0].1, sites[0].2), (0, 6400.0, 409_600.0));
        assert_eq!((sites[1].0, sites[1].1, sites[1].2), (1, 8192.0, 8192.0));
        let text = told.text(&mut Symbols::default());
        let lines: Vec<_> = text.lines().collect();
        let at = lines.iter().position(|line| line.ends_with("  new_item")).expect(&text);
        assert_eq!(lines[at + 1].trim(), "← main", "{text}");
        assert_eq!(lines[at + 1].find('←'), lines[at].find("new_item"), "{text}");
        let json = told.json(&mut Symbols::default());
        assert_eq!(json["pages"][0]["saved_bytes"], 102 * 4096 - 14_592);
        assert_eq!(json["pages"][0]["sites"][0]["functions"][1], "main");
        let svg = told.svg();
        assert!(svg.contains("<rect") && svg.contains("prefers-color-scheme:dark"), "{svg}");
    }

    #[test]
    fn side_by_side_hot_objects_need_less_for_the_same_hits() {
        let told = told(Some(102)).unwrap();
        for (as_is, apart) in told.mean_hits() {
            assert!(apart >= as_is && apart <= 1.0 + 1e-9, "{as_is} and {apart}");
        }
        let (as_is, apart) = told.mean_hits()[0];
        assert!(as_is < 0.06 && apart > 0.9, "{as_is} and {apart}");
    }

    /// What is told of the recording that `write` makes; `write` gives the clock at the end.
    fn told_of(
        cache: Option<CacheModel>,
        window: u64,
        write: impl FnOnce(&mut Writer) -> u64,
    ) -> Told {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("recording");
        let mut writer = Writer::create(&file, &header(cache), u64::MAX).unwrap();
        writer.name_context(vec!["new_item".into()]);
        let clock = write(&mut writer);
        writer.finish(clock).unwrap();
        let window = Some(window);
        read(&UtilisationArguments { file, window, json: false, svg: None }).unwrap().0
    }

    #[test]
    fn bytes_of_one_object_after_another_are_hot_once() {
        let told = told_of(None, 2000, |writer| {
            writer.append(Event::Counting { clock: 0 }, 0).unwrap();
            for object in 0..1000 {
                let clock = u64::from(object);
                // Some are of half the size, so that ranges overlap in part.
                let bytes = if object % 2 == 0 { 64 } else { 32 };
                let address = (1 << 30) + 64 - bytes;
                writer.append(Event::Born { address, bytes, context: 0, clock }, clock).unwrap();
                writer.append(Event::Access { object, offset: 0, written: true }, clock).unwrap();
                let clock = clock + 1;
                writer.append(Event::Died { object, clock }, clock).unwrap();
            }
            1000
        });
        assert_eq!(told.found[0].windows, [(64, 4096)]);
        assert_eq!(told.found[0].sites(), [(0, 64.0, 4096.0)]);
        let range = |start, end, accesses| Range { start, end, context: 0, accesses };
        let ranges = [range(0, 64, 3), range(32, 64, 4), range(64, 128, 5)];
        assert_eq!(apart(&ranges), [(7.0, 64.0), (5.0, 64.0)]);
    }

    /// A cache keeps most accesses away, so that the clock runs ahead of what is recorded.
    #[test]
    fn windows_end_by_the_clock_of_blocks_where_a_cache_is_between() {
        const EACH: u64 = 1_000_000;
        let cache = CacheModel { bytes: 32 << 20, ways: 16, line_bytes: 64 };
        let told = told_of(Some(cache), EACH, |writer| {
            for number in 0..4 {
                let address = (1 << 30) + number * 4096;
                writer.append(Event::Born { address, bytes: 64, context: 0, clock: 0 }, 0).unwrap();
            }
            writer.append(Event::Counting { clock: 0 }, 0).unwrap();
            for number in 5..4 * BLOCK_EVENTS {
                let object = (number / BLOCK_EVENTS) as u32;
                let access = Event::Access { object, offset: 0, written: false };
                writer.append(access, u64::from(object) * EACH).unwrap();
            }
            4 * EACH
        });
        assert_eq!(told.found[0].windows, [(64, 4096); 3]);
    }

    #[test]
    fn windows_that_cannot_be_are_refused() {
        assert!(told(Some(0)).is_err_and(|why| why.to_string().contains("--window 0")));
        assert!(told(None).is_ok_and(|told| told.window == 30));
    }

    #[test]
    fn a_window_is_ten_seconds_where_the_clock_is_time() {
        for (end, window) in [(3_000_000, WINDOW_US), (1 << 40, (1u64 << 40).div_ceil(10_000))] {
            let scratch = tempfile::tempdir().unwrap();
            let file = scratch.path().join("recording");
            let header = Header { clock: Clock::Us, ..header(None) };
            let mut writer = Writer::create(&file, &header, u64::MAX).unwrap();
            writer.name_context(vec!["new_item".into()]);
            let born = Event::Born { address: 1 << 30, bytes: 64, context: 0, clock: 0 };
            writer.append(born, 0).unwrap();
            writer.append(Event::Counting { clock: 0 }, 0).unwrap();
            writer.append(Event::Access { object: 0, offset: 0, written: false }, 0).unwrap();
            writer.finish(end).unwrap();
            let arguments = UtilisationArguments { file, window: None, json: false, svg: None };
            let told = read(&arguments).unwrap().0;
            assert_eq!((told.window, told.found[0].windows.len()), (window, 1), "{end}");
        }
    }
}
