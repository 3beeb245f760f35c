"""Small charts as SVG, which follow the reader's choice of light or dark: bars for scripts/benchmarks.py,
in the style of bench/costs.py."""

import html

COLOURS = [
    ("#0060a0", "#6cb8f0"),
    ("#b04000", "#f0a060"),
    ("#207030", "#70c880"),
    ("#802080", "#d890d8"),
    ("#505050", "#b0b0b0"),
    ("#907000", "#e0c040"),
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
        "<style>text{font-family:sans-serif;font-size:13px;fill:#111}.v{font-size:11px}.p{fill:#fff}.g{stroke:#999;stroke-width:1.5}"
        f"{light}@media (prefers-color-scheme: dark){{text{{fill:#ddd}}.p{{fill:#111}}.g{{stroke:#777}}{dark}}}</style>",
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
