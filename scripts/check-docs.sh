#!/bin/sh
# Documents: each page is of a kind, which says how many lines it may have and how many words a sentence;
# no page has a line of more than 200 columns, or a link that leads nowhere. What is generated is what
# its source says. Exit status 1 and a line for each fault.
#
# Notes are dated and never edited: of those only links are looked at.
set -eu
cd "$(dirname "$0")/.."

# Kind, most lines, most words of a sentence, pages.
kinds() {
    cat <<'KINDS'
front 100 40 README.md
tutorial 70 30 docs/first-hour.md
index 50 35 docs/README.md docs/how-to.md docs/configuration.md
how-to 60 30 docs/how-to/*.md
explanation 80 30 docs/explanation/*.md
benchmarks 60 30 docs/benchmarks.md
results 125 40 docs/benchmarks/*.md
settings 100 35 docs/settings/*.md
guide 120 36 docs/install.md docs/kernels.md docs/linked-programs.md docs/load.md docs/moving-objects.md docs/privileges.md docs/recording.md docs/reproduce.md
handbook 240 38 docs/known-problems.md docs/known-problems-attach.md docs/simulator.md docs/terrace-kv.md docs/terrace-kv-tls.md docs/testing.md docs/trace-format.md
limits 60 40 docs/limits.md
reference 130 60 docs/reference/terrace*.md docs/reference/exit-statuses.md docs/reference/formats.md
fields 500 36 docs/reference/report.md docs/reference/settings.md
hazards 480 40 docs/safety.md docs/safety/*.md
design 120 30 docs/design/*.md
architecture 240 36 ARCHITECTURE.md
changelog 400 36 CHANGELOG.md
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

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
faults=$(
    kinds | while read -r kind most words pages; do
        for page in $pages; do
            [ -e "$page" ] || { echo "$page is missing"; continue; }
            lines=$(wc -l <"$page")
            [ "$lines" -le "$most" ] || echo "$page has $lines lines; a page of this kind ($kind) may have $most"
            long_sentences "$page" "$words"
        done
    done
    kinds | cut -d' ' -f4- | while read -r pages; do printf '%s\n' $pages; done >"$scratch/pages"
    git ls-files --cached --others --exclude-standard '*.md' | while read -r page; do
        [ -e "$page" ] || continue
        case $page in
        docs/notes/*) ;;
        *)
            grep -Fqx "$page" "$scratch/pages" || echo "$page is of no kind: scripts/check-docs.sh has the list"
            awk -v page="$page" 'length > 200 { print page ":" NR ": more than 200 columns" }' "$page"
            ;;
        esac
        grep -o '](\([^)# ]*\)' "$page" | sed 's/](//' | grep -v '^$\|^http' | sort -u | while read -r link; do
            [ -e "$(dirname "$page")/$link" ] || echo "$page: no $link is there"
        done
    done
    if command -v python3 >/dev/null; then
        python3 scripts/check-anchors.py 2>&1 || true
        python3 scripts/benchmarks.py --check 2>&1 || true
        python3 scripts/hazards.py --check 2>&1 || true
        python3 bench/costs.py --check 2>&1 || true
    fi
)
[ -z "$faults" ] || { echo "$faults"; exit 1; }
