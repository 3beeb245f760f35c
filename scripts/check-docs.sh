#!/bin/sh
# Pages for newcomers stay short: each has a number of lines that it may not exceed, none of more than 200 columns, and links
# that lead somewhere. Exit status 1 and a line for each fault.
set -eu
cd "$(dirname "$0")/.."
faults=$(
    while read -r page most; do
        lines=$(wc -l <"$page")
        [ "$lines" -le "$most" ] || echo "$page has $lines lines; it may have $most"
        awk -v page="$page" 'length > 200 { print page ":" NR ": more than 200 columns" }' "$page"
        grep -o '](\([^)#]*\)' "$page" | sed 's/](//' | grep -v '^$\|^http' | sort -u | while read -r link; do
            [ -e "$(dirname "$page")/$link" ] || echo "$page: no $link is there"
        done
    done <<PAGES
README.md 100
docs/first-hour.md 70
docs/how-to.md 120
docs/limits.md 60
PAGES
)
[ -z "$faults" ] || { echo "$faults"; exit 1; }
