//! `terrace top`: the processes of all runs on this machine, sorted, in a terminal.
//!
//! What is shown is what `terrace status` reads. Only bold and reversed text is used, no colours,
//! so that any terminal shows it; bars are drawn with `#` where the locale is not UTF-8.

use crate::quantity::{bytes, share};
use crate::status::{
    self, BAR, Key, KindsSeen, Process, Status, TierNow, UNSUPERVISED, bar_cell, plain,
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// `terrace top`.
#[derive(Args, Debug)]
pub struct TopArguments {
    /// Seconds between updates (0.2 to 60)
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds_between)]
    pub interval: f64,
}

fn seconds_between(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is wanted".to_string())?;
    if (0.2..=60.0).contains(&seconds) { Ok(seconds) } else { Err("0.2 to 60 seconds".into()) }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
/// Terminals with fewer lines show no details of the selected process.
const DETAILS_FROM_LINES: u16 = 16;
/// The state of processes whose `terrace run` was killed.
const ABANDONED: &str = "abandoned";
/// Lines for details at least, and half of the terminal at most. They are a heading, a bar for each
/// tier, why pages were evicted, and a note.
const DETAIL_LINES: u16 = 9;
const HELP: [&str; 9] = [
    "up, down, PgUp, PgDn, Home, End   select a process",
    "left, right, < and >              sort by another column",
    "r                                 reverse the order",
    "q, Esc, Ctrl-C                    end; the runs go on",
    "",
    "data is what the process keeps; DRAM is what that takes of it, compressed",
    "pages included. faults/s counts pages that came back by a fault. lost 1m is",
    "the part of the last minute that was lost to waits for such pages, about.",
    "press any key to go on",
];

/// A signal asked for the end. The terminal is to be put back first.
static ENDS: AtomicBool = AtomicBool::new(false);
/// Longest time without a poll whether a signal came.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

extern "C" fn end(_: libc::c_int) {
    ENDS.store(true, Relaxed);
}

/// A column of the table.
struct Column {
    title: &'static str,
    width: u16,
    text: fn(&Process) -> String,
    order: fn(&Process, &Process) -> Ordering,
    /// Whether the largest comes first unless the order is reversed.
    descends: bool,
}

/// All columns, from left to right; together they fit into 80 cells.
const COLUMNS: [Column; 8] = [
    Column {
        title: "pid",
        width: 7,
        text: |process| process.pid.to_string(),
        order: |a, b| a.pid.cmp(&b.pid),
        descends: false,
    },
    Column {
        title: "program",
        width: 15,
        text: |process| plain(&process.program),
        order: |a, b| a.program.cmp(&b.program),
        descends: false,
    },
    Column {
        title: "state",
        width: 10,
        text: |process| match process.silent_s {
            Some(_) if process.state != ABANDONED => "silent".into(),
            _ => process.state.into(),
        },
        order: |a, b| a.state.cmp(b.state),
        descends: false,
    },
    Column {
        title: "data",
        width: 8,
        text: |process| bytes(process.logical_bytes),
        order: |a, b| a.logical_bytes.cmp(&b.logical_bytes),
        descends: true,
    },
    Column {
        title: "DRAM",
        width: 8,
        text: |process| bytes(process.physical_bytes),
        order: |a, b| a.physical_bytes.cmp(&b.physical_bytes),
        descends: true,
    },
    Column {
        title: "budget",
        width: 8,
        text: |process| process.budget_bytes.map_or("-".into(), bytes),
        order: |a, b| a.budget_bytes.cmp(&b.budget_bytes),
        descends: true,
    },
    Column {
        title: "faults/s",
        width: 9,
        text: |process| format!("{:.0}", process.faults_per_s),
        order: |a, b| a.faults_per_s.total_cmp(&b.faults_per_s),
        descends: true,
    },
    Column {
        title: "lost 1m",
        width: 7,
        text: |process| process.slowdown_last_minute.map_or("-".into(), share),
        order: |a, b| {
            let of = |process: &Process| process.slowdown_last_minute.unwrap_or(-1.0);
            of(a).total_cmp(&of(b))
        },
        descends: true,
    },
];
/// The column that is sorted by at first: DRAM.
const SORTED_BY: usize = 4;

/// What is shown, and how the user wants it.
struct Top {
    processes: Vec<Process>,
    /// What each process's run was given, by process: `--slowdown 2%`.
    limits: HashMap<Key, String>,
    /// Faults of attached processes at the last poll, and when that was.
    attached: HashMap<i32, (Instant, u64)>,
    runs: usize,
    runs_of_others: usize,
    column: usize,
    reversed: bool,
    helps: bool,
    kinds: KindsSeen,
    /// The process that the user went to; without one, or where it has ended, the first row is
    /// selected.
    chosen: Option<Key>,
    table: TableState,
    interval: Duration,
    bar: char,
}

impl Top {
    fn new(interval: Duration, bar: char) -> Top {
        Top {
            processes: Vec::new(),
            limits: HashMap::new(),
            attached: HashMap::new(),
            runs: 0,
            runs_of_others: 0,
            column: SORTED_BY,
            reversed: false,
            helps: false,
            kinds: KindsSeen::default(),
            chosen: None,
            table: TableState::default().with_selected(0),
            interval,
            bar,
        }
    }

    /// Takes what a look at the machine found.
    fn update(&mut self, status: Status) {
        (self.runs, self.runs_of_others) = (status.runs.len(), status.runs_of_others);
        self.limits.clear();
        for run in &status.runs {
            let Some(about) = &run.about else { continue };
            let slowdown = about.slowdown.iter().map(|target| format!(" --slowdown {target}"));
            let limit = format!("--dram {}{}", about.dram, slowdown.collect::<String>());
            let processes = run.processes.iter().map(Process::key);
            self.limits.extend(processes.map(|process| (process, limit.clone())));
        }
        self.processes = status
            .runs
            .into_iter()
            .flat_map(|run| {
                let state = |process: Process| match run.supervised {
                    true => process,
                    false => Process { state: ABANDONED, ..process },
                };
                run.processes.into_iter().map(state).collect::<Vec<_>>()
            })
            .collect();
        let then = std::mem::take(&mut self.attached);
        for figures in &status.attached {
            let now = (Instant::now(), figures.faults);
            self.attached.insert(figures.pid, now);
            self.processes.push(attached(figures, then.get(&figures.pid).map(|then| (*then, now))));
        }
        self.kinds.forget_others(self.processes.iter().map(Process::key).collect());
        self.sort();
    }

    fn sort(&mut self) {
        let column = &COLUMNS[self.column];
        let descends = column.descends != self.reversed;
        self.processes.sort_by(|a, b| {
            let order = (column.order)(a, b);
            let order = if descends { order.reverse() } else { order };
            order.then(a.pid.cmp(&b.pid)).then(a.key().cmp(&b.key()))
        });
        let is_chosen = |process: &Process| Some(process.key()) == self.chosen;
        let selected = self.processes.iter().position(is_chosen).unwrap_or(0);
        self.table.select(Some(selected));
        // Of the selected one alone: it is the only one of which that is shown.
        if let Some(process) = self.processes.get_mut(selected) {
            self.kinds.fill_in(process);
        }
    }

    fn selected(&self) -> Option<&Process> {
        self.processes.get(self.table.selected()?)
    }

    fn select(&mut self, by: isize) {
        let last = self.processes.len().saturating_sub(1);
        let now = self.table.selected().unwrap_or(0);
        self.table.select(Some(now.saturating_add_signed(by).min(last)));
        self.chosen = self.selected().map(Process::key);
    }

    /// Does what a key asks for. False if it ends the program.
    fn press(&mut self, key: KeyEvent) -> bool {
        const PAGE: isize = 15;
        let controls = key.modifiers.contains(KeyModifiers::CONTROL);
        if key.code == KeyCode::Char('c') && controls {
            return false;
        }
        if std::mem::take(&mut self.helps) {
            return true;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('?' | 'h') => self.helps = true,
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Right | KeyCode::Char('>') => self.column = (self.column + 1) % COLUMNS.len(),
            KeyCode::Left | KeyCode::Char('<') => {
                self.column = (self.column + COLUMNS.len() - 1) % COLUMNS.len();
            }
            KeyCode::Down => self.select(1),
            KeyCode::Up => self.select(-1),
            KeyCode::PageDown => self.select(PAGE),
            KeyCode::PageUp => self.select(-PAGE),
            KeyCode::Home => self.chosen = None,
            KeyCode::End => self.select(isize::MAX),
            _ => return true,
        }
        self.sort();
        true
    }

    fn draw(&mut self, frame: &mut Frame) {
        let height = frame.area().height;
        let told = self.details();
        let details = match height >= DETAILS_FROM_LINES {
            true => (told.len() as u16).clamp(DETAIL_LINES, (height / 2).max(DETAIL_LINES)),
            false => 0,
        };
        let [head, list, detail, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(details),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Line::styled(self.headline(), BOLD), head);
        frame.render_widget(Line::from("? help   < > sort by   r reverse   q quit"), foot);
        if self.processes.is_empty() {
            frame.render_widget(Paragraph::new(self.nothing()), list);
        } else {
            self.draw_table(frame, list);
            if details > 0 {
                frame.render_widget(Paragraph::new(told), detail);
            }
        }
        if self.helps {
            frame.render_widget(Clear, frame.area());
            frame.render_widget(Paragraph::new(HELP.map(Line::from).to_vec()), frame.area());
        }
    }

    fn headline(&self) -> String {
        let sum = |of: fn(&Process) -> u64| bytes(self.processes.iter().map(of).sum());
        format!(
            "terrace top: {}, {}, data {}, DRAM {}; by {}, every {}s",
            counted(self.runs, "run", "runs"),
            counted(self.processes.len(), "process", "processes"),
            sum(|process| process.logical_bytes),
            sum(|process| process.physical_bytes),
            COLUMNS[self.column].title,
            self.interval.as_secs_f64()
        )
    }

    fn nothing(&self) -> Vec<Line<'static>> {
        let mut lines = vec![Line::default(), Line::from("nothing runs under Terrace here")];
        if self.runs_of_others > 0 {
            let others = self.runs_of_others;
            lines.push(Line::from(format!(
                "other users' runs: {others}; only they and root can look at them"
            )));
        }
        lines
    }

    fn draw_table(&mut self, frame: &mut Frame, area: Rect) {
        let titles = COLUMNS.iter().enumerate().map(|(index, column)| {
            let style = if index == self.column { REVERSED } else { BOLD };
            Cell::from(aligned(column, column.title.into())).style(style)
        });
        let rows = self.processes.iter().map(|process| {
            Row::new(COLUMNS.iter().map(|column| aligned(column, (column.text)(process))))
        });
        let table = Table::new(rows, COLUMNS.iter().map(|column| Constraint::Length(column.width)))
            .header(Row::new(titles))
            .row_highlight_style(REVERSED);
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    /// What is known of the selected process beside its row.
    fn details(&self) -> Vec<Line<'static>> {
        let Some(process) = self.selected() else { return Vec::new() };
        let title = format!(
            "{} {}: {} pages came back, {:.1}s waited in all",
            process.pid,
            plain(&process.program),
            process.faults,
            process.stall_s
        );
        let mut lines = vec![Line::styled(title, BOLD)];
        lines.extend(self.limits.get(&process.key()).map(|limit| {
            let target = format!("  its run: {}", plain(limit));
            Line::from(target)
        }));
        lines.extend(
            process
                .tiers
                .iter()
                .map(|tier| Line::from(format!("  {}", process.tier_bar(tier, self.bar, BAR)))),
        );
        let evicted = process.evicted().into_iter();
        lines
            .extend(evicted.chain(process.unmanaged()).map(|text| Line::from(format!("  {text}"))));
        lines.extend((process.state == ABANDONED).then(|| Line::from(format!("  {UNSUPERVISED}"))));
        lines.extend(process.silent_s.map(|silent_s| {
            Line::from(format!("  silent for {silent_s:.0}s: these figures are old"))
        }));
        lines.extend(process.note.as_ref().map(|note| Line::from(format!("  {}", plain(note)))));
        lines
    }
}

/// A process that was attached to, by two looks at its faults.
fn attached(
    figures: &terrace_attach::AttachedStats,
    looks: Option<((Instant, u64), (Instant, u64))>,
) -> Process {
    let rate = looks.map(|((then, before), (now, faults))| {
        faults.saturating_sub(before) as f64 / (now - then).as_secs_f64().max(1e-3)
    });
    let tier =
        |name: &str, logical_bytes, faults| TierNow { name: name.into(), logical_bytes, faults };
    Process {
        pid: figures.pid.unsigned_abs(),
        program: figures.program.clone(),
        state: "attached",
        note: Some(figures.note.clone()).filter(|note| !note.is_empty()),
        logical_bytes: figures.data_bytes(),
        physical_bytes: figures.physical_bytes(),
        budget_bytes: Some(figures.budget_bytes).filter(|budget| *budget < u64::MAX),
        faults: figures.faults,
        faults_per_s: rate.unwrap_or(0.0),
        stall_s: figures.waited_us as f64 / 1e6,
        tiers: vec![
            tier("dram", figures.resident_bytes + figures.shared_limited_bytes, 0),
            tier(&figures.tier, figures.out_bytes + figures.shared_out_bytes, figures.faults),
        ],
        ..Process::default()
    }
}

/// `1 run`, `2 runs`.
fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// Numbers to the right, names to the left.
fn aligned(column: &Column, text: String) -> String {
    let width = usize::from(column.width);
    let is_name = matches!(column.title, "program" | "state");
    if is_name { format!("{text:<width$.width$}") } else { format!("{text:>width$}") }
}

/// Shows processes until the user has seen enough; the exit status is 0.
pub fn run(arguments: &TopArguments) -> Result<u8> {
    ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "terrace top needs a terminal; `terrace status --watch` writes lines"
    );
    let mut top = Top::new(Duration::from_secs_f64(arguments.interval), bar_cell());
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: the handler only stores into an atomic.
        let _ = unsafe { terrace_os::handle_signal(signal, end) };
    }
    let mut terminal = ratatui::try_init()
        .inspect_err(|_| ratatui::restore())
        .context("the terminal cannot be used")?;
    let result = show(&mut terminal, &mut top);
    ratatui::restore();
    result.map(|()| 0)
}

fn show(terminal: &mut DefaultTerminal, top: &mut Top) -> Result<()> {
    let mut before = HashMap::new();
    let mut next = Instant::now();
    while !ENDS.load(Relaxed) {
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            top.update(status::poll(&mut before));
            next = Instant::now() + top.interval;
        } else if !event::poll(left.min(POLL_INTERVAL))? {
            continue;
        } else if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && !top.press(key)
        {
            break;
        }
        terminal.draw(|frame| top.draw(frame))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::directory::About;
    use crate::status::Run;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn status(processes: u32) -> Status {
        let process = |pid: u32| Process {
            pid,
            program: format!("program-{pid}"),
            state: "active",
            logical_bytes: u64::from(pid) << 20,
            physical_bytes: u64::from(pid) << 19,
            budget_bytes: Some(64 << 20),
            faults_per_s: f64::from(1000 - pid),
            slowdown_last_minute: Some(0.031),
            tiers: vec![
                TierNow { name: "dram".into(), logical_bytes: 10 << 20, faults: 0 },
                TierNow { name: "lz4".into(), logical_bytes: 20 << 20, faults: 7 },
            ],
            demoted_for: HashMap::from([("cold", 12), ("probation", 30)]),
            note: Some("a \u{1b}[2J note".into()),
            ..Process::default()
        };
        let run = Run {
            directory: "/d".into(),
            about: None,
            supervised: true,
            processes: (1..=processes).map(process).collect(),
        };
        let runs = if processes > 0 { vec![run] } else { Vec::new() };
        Status { runs, runs_of_others: 1, attached: Vec::new() }
    }

    fn screen(top: &mut Top, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it is in memory");
        terminal.draw(|frame| top.draw(frame)).expect("it is in memory");
        let buffer = terminal.backend().buffer().clone();
        (0..height)
            .map(|y| (0..width).map(|x| buffer[(x, y)].symbol().to_string()).collect())
            .collect()
    }

    fn press(top: &mut Top, code: KeyCode) -> bool {
        top.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn three_hundred_processes_are_shown_sorted_in_80_by_24() {
        let mut top = Top::new(Duration::from_secs(2), '#');
        top.update(status(300));
        let lines = screen(&mut top, 80, 24);
        assert!(lines[0].starts_with("terrace top: 1 run, 300 processes, data 44.1G"), "{lines:?}");
        assert!(lines[1].contains("faults/s") && lines[1].trim_end().ends_with("lost 1m"));
        // The largest first: 300 times 512 KiB.
        assert!(lines[2].contains("    300 program-300"), "{lines:?}");
        assert!(lines[2].contains("150.0M") && lines[2].contains("3.1%"), "{lines:?}");
        let text = lines.join("\n");
        assert!(text.contains(&format!("lz4             20.0M {}", "#".repeat(BAR))), "{text}");
        assert!(text.contains("pages evicted as probation 30, cold 12"), "{text}");
        assert!(!text.contains('\u{1b}'), "what a user wrote does not reach the terminal as it is");
        // By faults, two columns to the right; a process that was gone to stays selected.
        assert!(press(&mut top, KeyCode::Down));
        assert!(press(&mut top, KeyCode::Right) && press(&mut top, KeyCode::Right));
        assert_eq!(top.selected().map(|process| process.pid), Some(299));
        assert!(press(&mut top, KeyCode::Home));
        assert_eq!(top.selected().map(|process| process.pid), Some(1), "999 faults a second");
        assert!(press(&mut top, KeyCode::Char('r')) && press(&mut top, KeyCode::Home));
        assert_eq!(top.selected().map(|process| process.pid), Some(300));
        assert!(press(&mut top, KeyCode::End) && press(&mut top, KeyCode::Down));
        assert!(screen(&mut top, 80, 24).join("\n").contains("program-1 "), "it has scrolled");
        // What has ended is gone, and another is selected.
        top.update(status(2));
        assert!(top.selected().is_some());
    }

    #[test]
    fn what_was_abandoned_is_told() {
        let mut top = Top::new(Duration::from_secs(2), '#');
        let mut killed = status(2);
        killed.runs[0].supervised = false;
        top.update(killed);
        let text = screen(&mut top, 80, 24).join("\n");
        assert!(text.contains("abandoned") && text.contains(UNSUPERVISED), "{text}");
    }

    #[test]
    fn what_a_run_was_given_is_told_of_its_processes() {
        let mut top = Top::new(Duration::from_secs(2), '#');
        let mut limited = status(1);
        limited.runs[0].about =
            Some(About { dram: "60%".into(), slowdown: Some("2%".into()), ..About::default() });
        top.update(limited);
        let text = screen(&mut top, 80, 24).join("\n");
        assert!(text.contains("its run: --dram 60% --slowdown 2%"), "{text}");
    }

    #[test]
    fn attached_processes_are_shown_too() {
        let mut top = Top::new(Duration::from_secs(2), '#');
        let figures = terrace_attach::AttachedStats {
            pid: 77,
            program: "exporter".into(),
            tier: "lz4".into(),
            budget_bytes: u64::MAX,
            resident_bytes: 10 << 20,
            out_bytes: 30 << 20,
            ..terrace_attach::AttachedStats::default()
        };
        top.update(Status { attached: vec![figures], ..status(0) });
        let text = screen(&mut top, 80, 24).join("\n");
        assert!(text.contains("exporter") && text.contains("attached"), "{text}");
        assert!(text.contains("40.0M") && text.contains("lz4"), "{text}");
        assert!(!text.contains("active"), "{text}");
    }

    #[test]
    fn where_nothing_runs_that_is_said_and_small_terminals_show_what_they_can() {
        let mut top = Top::new(Duration::from_secs(2), '#');
        top.update(status(0));
        let text = screen(&mut top, 80, 24).join("\n");
        assert!(text.contains("nothing runs under Terrace here"), "{text}");
        assert!(text.contains("other users' runs: 1;"), "{text}");
        for key in [KeyCode::Down, KeyCode::PageUp, KeyCode::End, KeyCode::Char('r')] {
            assert!(press(&mut top, key));
        }
        top.update(status(3));
        for (width, height) in [(80, 24), (20, 5), (1, 1), (300, 100)] {
            screen(&mut top, width, height);
        }
    }

    #[test]
    fn a_question_mark_shows_the_keys_and_q_ends_it() {
        let mut top = Top::new(Duration::from_secs(2), '#');
        top.update(status(1));
        assert!(press(&mut top, KeyCode::Char('?')));
        assert!(screen(&mut top, 80, 24).join("\n").contains("reverse the order"));
        assert!(press(&mut top, KeyCode::Char('q')), "any key ends the help only");
        assert!(!press(&mut top, KeyCode::Char('q')));
        assert!(!top.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        let wide: u16 = COLUMNS.iter().map(|column| column.width + 1).sum();
        assert!(wide <= 80 + 1, "{wide} cells");
        assert!(HELP.iter().all(|line| line.len() <= 78));
    }
}
