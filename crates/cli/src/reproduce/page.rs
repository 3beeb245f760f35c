//! The page: one file with all figures in it, which needs no network, no scripts, and follows the
//! reader's theme.

use super::figure::{Figure, Row, Verdict};
use super::plot::escaped;
use super::{Options, Paper};
use anyhow::Result;
use std::fmt::Write as _;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2024;--soft:#5a6472;--back:#fff;--card:#f6f7f9;--line:#d9dde2;
--good:#176b3a;--bad:#a42222;--open:#7a5a00;--link:#1a5fb4}
@media(prefers-color-scheme:dark){:root{--ink:#e4e7ea;--soft:#a3acb7;--back:#15181b;--card:#1e2226;--line:#363c43;
--good:#6fd39a;--bad:#ff8f8a;--open:#e5bf62;--link:#7db7ff}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:1.5rem 1rem 4rem;background:var(--back);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.7rem;margin:.2em 0}h2{margin:2.5rem 0 .5rem;border-bottom:1px solid var(--line)}h3{margin:2.2rem 0 .3rem;font-size:1.1rem}
a{color:var(--link)}p{margin:.5em 0}.soft,caption,summary{color:var(--soft)}
blockquote{margin:.5em 0;padding:.1em 0 .1em .9em;border-left:3px solid var(--line)}
svg{width:100%;height:auto;display:block}figure{margin:.8em 0;padding:.5em;background:var(--card);border-radius:6px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem;margin:.6em 0}
th,td{text-align:left;vertical-align:top;padding:.3em .6em;border-bottom:1px solid var(--line)}th{color:var(--soft);font-weight:600}
td.id{white-space:nowrap}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.reproduced{color:var(--good)}.not{color:var(--bad)}.cannot{color:var(--open)}.ours{color:var(--soft)}
.if{color:var(--soft);font-size:.85em}tr.why td{padding-left:1.6em;border-left:3px solid var(--bad)}
.verdict{font-weight:600;white-space:nowrap}details{margin:.4em 0}code{font-size:.95em}";

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "reproduced",
        Verdict::NotReproduced => "not",
        Verdict::CannotBeJudged => "cannot",
        Verdict::OursOnly => "ours",
    }
}

/// How many of the rows have each verdict, but those that are ours alone.
fn counts<'r>(rows: impl Iterator<Item = &'r Row>) -> [usize; 3] {
    let mut counts = [0; 3];
    for row in rows {
        match row.verdict {
            Verdict::Reproduced => counts[0] += 1,
            Verdict::NotReproduced => counts[1] += 1,
            Verdict::CannotBeJudged => counts[2] += 1,
            Verdict::OursOnly => {}
        }
    }
    counts
}

fn deviation(row: &Row) -> String {
    row.deviation.map_or(String::new(), |deviation| format!("{:+.1} %", deviation * 100.0))
}

fn cell(row: &Row, value: &super::figure::Value) -> String {
    match value {
        super::figure::Value::Number(_) => format!("<td class=\"n\">{value} {}</td>", row.unit),
        other => format!("<td>{}</td>", escaped(&other.to_string())),
    }
}

/// The whole page.
pub fn page(papers: &[(&Paper, Vec<Figure>)], options: &Options) -> Result<String> {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width\"><title>Terrace: the papers, reproduced</title>\
         <style>\n{STYLE}\n</style></head><body>\n\
         <h1>The papers, reproduced</h1>\n<p>For each figure or headline: what the paper says, what Terrace's simulator makes of it, and what came of \
         it. \
         The policies are those that run in live programs; parameters are the papers'. Where one had to be inferred from a \
         paper's own numbers, it is named; nothing else was adjusted to meet a number. \
         Under each claim stands when it counts as reproduced, and under each that is not, why, as far as is known.</p>\n\
         <p class=\"soft\">Made by <code>terrace reproduce</code> {}, seed {}{}.</p>\n",
        env!("CARGO_PKG_VERSION"),
        options.seed,
        if options.quick {
            ", <strong>quick</strong>: a small version that shows that everything runs; its numbers are not to be cited"
        } else {
            ""
        },
    );
    out.push_str(
        "<div class=\"wide\"><table><caption>Claims by figure</caption><tr><th>figure</th><th></th><th>reproduced</th>\
         <th>not</th><th>cannot be judged here</th></tr>\n",
    );
    for (paper, figures) in papers {
        let all = counts(figures.iter().flat_map(|figure| &figure.rows));
        let _ = writeln!(
            out,
            "<tr><th><a href=\"#{0}\">{0}</a></th><th>{1}</th><th>{2}</th><th>{3}</th><th>{4}</th></tr>",
            paper.name,
            escaped(paper.title),
            all[0],
            all[1],
            all[2]
        );
        for figure in figures {
            let [good, bad, open] = counts(figure.rows.iter());
            let _ = writeln!(
                out,
                "<tr><td class=\"id\"><a href=\"#{0}\">{0}</a></td><td>{1}</td><td class=\"reproduced\">{good}</td>\
                 <td class=\"not\">{bad}</td><td class=\"cannot\">{open}</td></tr>",
                figure.id,
                escaped(figure.title)
            );
        }
    }
    out.push_str("</table></div>\n");
    for (paper, figures) in papers {
        let _ = writeln!(
            out,
            "<h2 id=\"{}\">{}</h2>\n<p class=\"soft\">{}</p>\n<p>{}</p>",
            paper.name,
            escaped(paper.title),
            escaped(paper.cited),
            escaped(paper.about)
        );
        for figure in figures {
            figure_of(&mut out, figure)?;
        }
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

fn figure_of(out: &mut String, figure: &Figure) -> Result<()> {
    let _ = writeln!(
        out,
        "<h3 id=\"{0}\">{0}: {1}</h3>\n<blockquote>{2}</blockquote>",
        figure.id,
        escaped(figure.title),
        escaped(figure.claim)
    );
    for plot in &figure.plots {
        let _ = writeln!(out, "<figure>{}</figure>", plot.svg()?);
    }
    let (ours, judged): (Vec<&Row>, Vec<&Row>) =
        figure.rows.iter().partition(|row| row.verdict == Verdict::OursOnly);
    table(out, &judged);
    if !ours.is_empty() {
        let _ = writeln!(
            out,
            "<details><summary>{} more numbers of ours, which the paper does not have</summary>",
            ours.len()
        );
        table(out, &ours);
        out.push_str("</details>\n");
    }
    let _ = writeln!(
        out,
        "<p>{}</p>\n<details open><summary>Run with</summary><p>{}</p></details>",
        escaped(&figure.note),
        escaped(&figure.run_with)
    );
    Ok(())
}

fn table(out: &mut String, rows: &[&Row]) {
    out.push_str("<div class=\"wide\"><table><tr><th>what</th><th>paper</th><th>ours</th><th>deviation</th><th></th></tr>\n");
    for row in rows {
        let judged_by = match &row.reproduced_if[..] {
            "" => String::new(),
            text => format!("<div class=\"if\">reproduced if: {}</div>", escaped(text)),
        };
        let _ = writeln!(
            out,
            "<tr><td>{}{judged_by}</td>{}{}<td class=\"n\">{}</td><td class=\"verdict {}\">{}</td></tr>",
            escaped(&row.metric),
            cell(row, &row.paper),
            cell(row, &row.ours),
            deviation(row),
            class(row.verdict),
            row.verdict.name()
        );
        if !row.why.is_empty() {
            let _ = writeln!(
                out,
                "<tr class=\"why\"><td colspan=\"5\">Why not: {}</td></tr>",
                escaped(&row.why)
            );
        }
    }
    out.push_str("</table></div>\n");
}

/// The rows as a table for a terminal.
pub fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut figure = "";
    for row in rows {
        if row.figure != figure {
            figure = row.figure;
            let _ = writeln!(out, "{figure}");
        }
        let unit = |value: &super::figure::Value| match value {
            super::figure::Value::Number(_) if !row.unit.is_empty() => {
                format!("{value} {}", row.unit)
            }
            other => other.to_string(),
        };
        let _ = writeln!(
            out,
            "  {:<22} {}: {} → {} {}",
            row.verdict.name(),
            row.metric,
            unit(&row.paper),
            unit(&row.ours),
            deviation(row)
        );
        if !row.why.is_empty() {
            let _ = writeln!(out, "  {:<22}   why: {}", "", row.why);
        }
    }
    let [good, bad, open] = counts(rows.iter());
    let _ =
        writeln!(out, "reproduced {good}, not {bad}, cannot be judged here {open} (paper → ours)");
    out
}
