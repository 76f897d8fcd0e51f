#!/bin/sh
# check_pages.sh SHARE PROGRAM: the man pages say what --help does: every command, option and key, the exit codes of
# README; and they are roff that man (or, without it, this script) has nothing to say about.
set -eu
share=$1 program=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
fail() {
    echo "$1"
    failed=1
}

# What of man(7) is used; a control line that is none of these is a text that was not escaped.
macros='TH|SH|PP|TP|B|I|BR|RI|br|nf|fi'
for page in "$share"/man/man1/*.1 "$share"/man/man5/*.5; do
    name=${page##*/}
    head -n 1 "$page" | grep -q '^\.TH "TESSERA' || fail "$name: no title"
    for section in NAME SYNOPSIS DESCRIPTION "SEE ALSO"; do
        grep -qx ".SH $section" "$page" || fail "$name: no $section"
    done
    if grep -nE "^[.']" "$page" | grep -vE "^[0-9]+:\\.($macros)( |\$)"; then
        fail "$name: other macros than $macros"
    fi
    if grep -nE '\\[^-&efB(]|\\\([^agh t]' "$page" | grep -vE '\\f[BIR]|\\\((ga|aq|ha|ti)'; then
        fail "$name: other escapes"
    fi
    [ "$(grep -cx '\.nf' "$page")" = "$(grep -cx '\.fi' "$page")" ] || fail "$name: .nf without .fi"
    if command -v man >/dev/null && command -v groff >/dev/null; then
        LC_ALL=C MANWIDTH=80 man --warnings -l "$page" >"$scratch/$name" 2>"$scratch/warnings" || fail "$name: man failed"
        if [ -s "$scratch/warnings" ]; then
            cat "$scratch/warnings"
            fail "$name: man warns"
        fi
    fi
    if command -v mandoc >/dev/null; then
        mandoc -Tlint -W error "$page" || fail "$name: mandoc"
    fi
done

# Plain text of a page.
plain() {
    sed -e 's/\\f[BIR]//g' -e 's/\\-/-/g' -e 's/\\e/\\/g' -e "s/\\\\(aq/'/g" -e 's/\\(ga/`/g' "$share/man/$1"
}

verbs=$("$program" --help | sed -n 's/^  \(mpirun -n N \)\{0,1\}tessera \([a-z]*\) .*/\2/p' | sort -u | grep -vx version)
[ "$(echo "$verbs" | wc -l)" -ge 10 ] || fail "--help lists few commands: $verbs"
for verb in $verbs; do
    plain "man1/tessera-$verb.1" >"$scratch/page"
    plain man1/tessera.1 | grep -q "^$verb\( [a-z]*\)\{0,1\}\$" || fail "tessera.1: no $verb"
    "$program" "$verb" --help >"$scratch/help"
    grep -qF -- "$(head -n 1 "$scratch/help")" "$scratch/page" || fail "tessera-$verb.1: another line than --help"
    grep -o '^    -[a-z-]*' "$scratch/help" | tr -d ' ' >"$scratch/options" || :
    while read -r option; do
        grep -q -- "^$option\( .*\)\{0,1\}\$" "$scratch/page" || fail "tessera-$verb.1: no $option"
    done <"$scratch/options"
done
[ "$(find "$share/man/man1" -name 'tessera-*.1' | wc -l)" = "$(echo "$verbs" | wc -l)" ] || fail "a page of no command"

plain man5/tessera-job.5 >"$scratch/page"
keys=$("$program" train --help | sed -n 's/^  \([a-z0-9_]*\) \[.*/\1/p')
[ "$(echo "$keys" | wc -l)" -ge 80 ] || fail "--help lists few keys"
for key in $keys; do
    grep -q "^$key [a-z ]*\$" "$scratch/page" || fail "tessera-job.5: no $key"
done

# | 75 | stopped by ... | of README
sed -n 's/^| \([0-9]*\) | \(.*\) |$/\1:\2/p' "$root/README.md" | tr -d '`' | grep -E '^(0|[67][0-9]):' >"$scratch/codes"
plain man1/tessera.1 | tr '\n' ':' >"$scratch/page"
while read -r row; do
    grep -qF ":$row:" "$scratch/page" || fail "tessera.1: no exit code $row as in README.md"
done <"$scratch/codes"
[ "$(wc -l <"$scratch/codes")" -ge 8 ] || fail "README.md has few exit codes"
exit $failed
