#!/bin/sh
# A doc comment is shown alone, by an editor or a page of documentation, so it must say by itself
# what it is about. None may begin with a word that leans on what stands before it. Pages, threads
# and processes are no persons. Exit status 1 and a line
# for each comment that does otherwise.
set -eu
cd "$(dirname "$0")/.."
git ls-files '*.rs' | xargs awk '
    FNR == 1 { inside = 0 }
    {
        comment = $0 ~ /^[ \t]*\/\/[\/!]( |$)/
        leans = "(Of|The same|Who|Whose|Its|Those|So many|As at|As above|That of|See there|Likewise)[ :,.]"
        if (comment && !inside && $0 ~ "^[ \t]*//[/!] " leans) {
            print FILENAME ":" FNR ": " $0
            faults++
        }
        person = "[^a-zA-Z](who|whoever|somebody|nobody|Who|Whoever|Somebody|Nobody)[^a-zA-Z]"
        if ($0 ~ "^[ \t]*//.*" person && $0 !~ /nobody`|-u nobody/) {
            print FILENAME ":" FNR ": a person: " $0
            faults++
        }
        inside = comment
    }
    END { exit faults > 0 }'
