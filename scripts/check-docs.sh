#!/bin/sh
# Documents: each page has a number of lines that it may not exceed, and sentences that can be read
# at once; no page has a line of more than 200 columns, or a link that leads nowhere. What is
# generated is what its source says. Exit status 1 and a line for each fault.
#
# Notes are dated and never edited. The table of hazards has rows that are longer.
set -eu
cd "$(dirname "$0")/.."

# Kind, most lines, most words of a sentence, pages. A page of another kind is not in this list: it has no limit but the width.
kinds() {
    cat <<'KINDS'
front 100 60 README.md
tutorial 70 35 docs/first-hour.md
index 50 35 docs/README.md docs/how-to.md
how-to 60 30 docs/how-to/*.md
explanation 80 30 docs/explanation/*.md
benchmarks 60 30 docs/benchmarks.md
reference 130 60 docs/reference/terrace*.md docs/reference/exit-statuses.md
limits 60 60 docs/limits.md
design 120 30 docs/design/*.md
contract 200 60 docs/moving-objects.md
KINDS
}

# Sentences of a page's prose that have too many words: not of code, tables and headings.
long_sentences() {
    awk -v page="$1" -v most="$2" '
        function look(   text, part, parts, i, words, word) {
            text = paragraph
            paragraph = ""
            gsub(/`[^`]*`/, "code", text)
            gsub(/\]\([^)]*\)/, "]", text)
            gsub(/<[^>]*>/, "", text)
            parts = split(text, part, /[.:;?!·](\*\*)?([ \t]|$)/)
            for (i = 1; i <= parts; i++) {
                words = split(part[i], word, /[ \t]+/)
                if (word[1] == "") words--
                if (words > most) print page ": a sentence of " words " words: " substr(part[i], 1, 60) "..."
            }
        }
        /^[ \t]*```/ { look(); code = !code; next }
        code || /^(#|\||!\[|<!--)/ { look(); next }
        /^[ \t]*$/ { look(); next }
        /^[ \t]*([-*]|[0-9]+\.) / { look() }
        { paragraph = paragraph " " $0 }
        END { look() }' "$1"
}

faults=$(
    kinds | while read -r kind most words pages; do
        for page in $pages; do
            [ -e "$page" ] || { echo "$page is missing"; continue; }
            lines=$(wc -l <"$page")
            [ "$lines" -le "$most" ] || echo "$page has $lines lines; a page of this kind ($kind) may have $most"
            long_sentences "$page" "$words"
        done
    done
    git ls-files --cached --others --exclude-standard '*.md' | while read -r page; do
        [ -e "$page" ] || continue
        case $page in
        docs/notes/* | docs/safety.md) ;;
        *) awk -v page="$page" 'length > 200 { print page ":" NR ": more than 200 columns" }' "$page" ;;
        esac
        grep -o '](\([^)# ]*\)' "$page" | sed 's/](//' | grep -v '^$\|^http' | sort -u | while read -r link; do
            [ -e "$(dirname "$page")/$link" ] || echo "$page: no $link is there"
        done
    done
    if command -v python3 >/dev/null; then
        python3 scripts/benchmarks.py --check 2>&1 || true
        python3 scripts/hazards.py --check 2>&1 || true
        python3 bench/costs.py --check 2>&1 || true
    fi
)
[ -z "$faults" ] || { echo "$faults"; exit 1; }
