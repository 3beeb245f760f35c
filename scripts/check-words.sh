#!/bin/sh
# A doc comment is shown alone, by an editor or a page of documentation, so it must say by itself
# what it is about. None may begin with a word that leans on what stands before it. Exit status 1
# and a line for each that does.
set -eu
cd "$(dirname "$0")/.."
git ls-files '*.rs' | xargs awk '
    FNR == 1 { inside = 0 }
    {
        comment = $0 ~ /^[ \t]*\/\/[\/!]( |$)/
        if (comment && !inside && $0 ~ /^[ \t]*\/\/[\/!] (Of|The same|Who|Whose)[ :,.]/) {
            print FILENAME ":" FNR ": " $0
            faults++
        }
        inside = comment
    }
    END { exit faults > 0 }'
