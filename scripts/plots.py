"""Small charts as SVG, which follow the reader's choice of light or dark: bars and curves for
scripts/benchmarks.py, in the style of bench/costs.py."""

import html
import math

COLOURS = [
    ("#0060a0", "#6cb8f0"),
    ("#b04000", "#f0a060"),
    ("#207030", "#70c880"),
    ("#802080", "#d890d8"),
    ("#505050", "#b0b0b0"),
    ("#907000", "#e0c040"),
    ("#007878", "#50d0d0"),
]
WIDTH, LEFT, RIGHT = 680, 210, 610
BAR, GAP = 13, 10


def said(value):
    """A value as it stands behind its bar."""
    if value >= 100_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bars(title, series, groups, mark=None):
    """Horizontal bars: `groups` are pairs of a label and a value for each of `series` (`None`: no bar).
    A line stands at `mark`."""
    values = [value for _, row in groups for value in row if value is not None]
    most = max(values + ([mark] if mark else [])) * 1.02
    top = 44 + (22 if len(series) > 1 else 0)
    height = top + sum(len(row) * BAR + GAP for _, row in groups) + 16

    def across(value):
        return LEFT + value * (RIGHT - LEFT) / most

    light = "".join(f".c{n}{{fill:{pair[0]}}}" for n, pair in enumerate(COLOURS[: len(series)]))
    dark = "".join(f".c{n}{{fill:{pair[1]}}}" for n, pair in enumerate(COLOURS[: len(series)]))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        "<style>text{font-family:sans-serif;font-size:13px;fill:#111}.v{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:3px}.p{fill:#fff}"
        f".g{{stroke:#999;stroke-width:1.5}}{light}@media (prefers-color-scheme: dark){{text{{fill:#ddd}}.v{{stroke:#111}}"
        f".p{{fill:#111}}.g{{stroke:#777}}{dark}}}</style>",
        f'<rect class="p" width="{WIDTH}" height="{height}"/>',
        f'<text x="12" y="26">{html.escape(title)}</text>',
    ]
    if len(series) > 1:
        x = 12
        for number, name in enumerate(series):
            out.append(f'<rect class="c{number}" x="{x}" y="38" width="12" height="12"/>')
            out.append(f'<text x="{x + 17}" y="49">{html.escape(name)}</text>')
            x += 36 + 8 * len(name)
    if mark:
        x = f"{across(mark):.1f}"
        out.append(f'<line class="g" x1="{x}" x2="{x}" y1="{top}" y2="{height - 12}"/>')
    y = top + 4
    for label, row in groups:
        middle = y + len(row) * BAR / 2 + 4
        out.append(f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{html.escape(label)}</text>')
        for number, value in enumerate(row):
            if value is not None:
                out.append(f'<rect class="c{number}" x="{LEFT}" y="{y}" width="{across(value) - LEFT:.1f}" height="{BAR - 2}"/>')
                out.append(f'<text class="v" x="{across(value) + 5:.1f}" y="{y + BAR - 3}">{said(value)}</text>')
            y += BAR
        y += GAP
    return "\n".join(out + ["</svg>", ""])


def curves(title, axes, series, least=0.1):
    """Curves through points: `series` are pairs of a name and points of two values in percent. The first axis is
    logarithmic from `least` on, where smaller values stand too. The second begins at 0."""
    left, right, top, bottom, height = 60, 500, 44, 350, 400
    points = [point for _, row in series for point in row]
    most = max([10 * least] + [x for x, _ in points]) * 1.1
    high = max([1] + [y for _, y in points]) * 1.05

    def across(value):
        return left + math.log(max(value, least) / least) * (right - left) / math.log(most / least)

    def down(value):
        return bottom - max(value, 0) * (bottom - top) / high

    rules = [
        "".join(f".c{n}{{fill:{pair[shade]}}}.l{n}{{stroke:{pair[shade]}}}" for n, pair in enumerate(COLOURS[: len(series)]))
        for shade in (0, 1)
    ]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        "<style>text{font-family:sans-serif;font-size:13px;fill:#111}.v{font-size:11px}.p{fill:#fff}.g{stroke:#bbb;stroke-width:1}"
        f"polyline{{fill:none;stroke-width:1.5}}{rules[0]}"
        f"@media (prefers-color-scheme: dark){{text{{fill:#ddd}}.p{{fill:#111}}.g{{stroke:#555}}{rules[1]}}}</style>",
        f'<rect class="p" width="{WIDTH}" height="{height}"/>',
        f'<text x="12" y="26">{html.escape(title)}</text>',
        f'<text x="{(left + right) / 2:.0f}" y="{bottom + 38}" text-anchor="middle">{html.escape(axes[0])}</text>',
        f'<text x="16" y="{(top + bottom) / 2:.0f}" text-anchor="middle" transform="rotate(-90 16 {(top + bottom) / 2:.0f})">{html.escape(axes[1])}</text>',
    ]
    tick = least
    while tick <= most:
        x = f"{across(tick):.1f}"
        out.append(f'<line class="g" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
        out.append(f'<text class="v" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
        tick *= 10
    step = 10 if high > 25 else 5
    for value in range(0, int(high) + 1, step):
        y = f"{down(value):.1f}"
        out.append(f'<line class="g" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>')
        out.append(f'<text class="v" x="{left - 6}" y="{down(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for number, (name, row) in enumerate(series):
        drawn = [(f"{across(x):.1f}", f"{down(y):.1f}") for x, y in sorted(row)]
        out.append(f'<polyline class="l{number}" points="{" ".join(f"{x},{y}" for x, y in drawn)}"/>')
        out += [f'<circle class="c{number}" cx="{x}" cy="{y}" r="3.5"/>' for x, y in drawn]
        y = top + 8 + 20 * number
        out.append(f'<rect class="c{number}" x="{right + 16}" y="{y - 10}" width="12" height="12"/>')
        out.append(f'<text x="{right + 34}" y="{y}">{html.escape(name)}</text>')
    return "\n".join(out + ["</svg>", ""])
