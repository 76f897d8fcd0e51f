#!/bin/sh
# check_abi.sh BUILD CC [--update]: a program that was built with an earlier 0.2's tessera.h goes on working with this
# libtessera. tessera.abi, made by --update, is what such programs rely on: each function that the library exports, every
# struct's layout, the value of every constant. abidiff (Debian: abigail-tools) compares. Nothing may go or change; functions,
# constants, and members at the end of a struct that says its size may come, with a hint to run this with --update. The
# compiler's description of types comes from a small library that only mentions them, for a release has none.
set -eu
build=$1 cc=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
baseline=$root/tests/library/tessera.abi
again="tests/library/check_abi.sh ${build#"$root"/} $cc --update"
for tool in abidw abidiff; do
    command -v $tool >/dev/null || { echo "skipped: $tool is not installed (Debian: abigail-tools)"; exit 77; }
done
[ "$(getconf LONG_BIT)" -eq 64 ] || { echo "skipped: tessera.abi is of machines with 8-byte pointers"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
nm -D --defined-only "$build/libtessera.so" | awk '$2 != "A" { print $NF }' | sed 's/@@.*//' >"$scratch/exported"
[ "$(wc -l <"$scratch/exported")" -ge 10 ] || { echo "$build/libtessera.so exports hardly anything"; exit 1; }

# describe INCLUDE: what the headers there and the exported functions are.
describe() {
    {
        echo '#include "tessera.h"'
        sed 's/.*/TSR_API extern __typeof__(\&&) const type_of_&; __typeof__(\&&) const type_of_& = 0;/' "$scratch/exported"
        sed -nE 's/^enum (tsr_[a-z_]+).*/TSR_API extern const enum \1 values_of_\1; const enum \1 values_of_\1 = 0;/p' "$1/tessera.h"
    } >"$scratch/abi.c"
    (cd "$scratch" && "$cc" -std=gnu11 -g -fPIC -shared -I "$1" abi.c -o abi.so) || exit 1
    abidw --no-comp-dir-path --no-corpus-path --no-show-locs --no-architecture --type-id-style hash "$scratch/abi.so"
}

# changes BEFORE NOW: what abidiff says, without what may come. Of a struct that grows it says the size before and where
# each new member lies.
changes() {
    sized=$(sed -nE 's/^#define (TSR_[A-Z_]+)_INIT .*/\1/p' "$root/include/tessera.h" | tr 'A-Z\n' 'a-z ')
    { abidiff --leaf-changes-only --no-added-syms "$1" "$2" || true; } | awk -v sized=" $sized" '
        /summary: / || /^$/ { next }
        /^[^ ]/ { name = $2; sub(/\x27$/, "", name); grows = 0; subject = $0 }
        /^\x27struct / && index(sized, " " name " ") { next }
        /^  type size changed from [0-9]+ to / && index(sized, " " name " ") { grows = $5; if ($7 > $5) next }
        /^  [0-9]+ data member insertions?:$/ && grows { next }
        /^    \x27.*, at offset [0-9]+ \(in bits\)$/ && grows && $(NF - 2) >= grows { next }
        { if (subject != "" && subject != $0) print subject; subject = ""; print }'
}

if [ "${3-}" = --update ]; then
    describe "$root/include" >"$scratch/new" && cp "$scratch/new" "$baseline"
    exit
fi

describe "$root/include" >"$scratch/now"
found=$(changes "$baseline" "$scratch/now")
if [ -n "$found" ]; then
    printf '%s\n' "$found"
    echo "programs that were built with an earlier tessera.h rely on what was removed or changed"
    exit 1
fi

# What must be found, in a changed copy of the headers, and what must not.
mkdir "$scratch/include"
cp "$root"/include/*.h "$scratch/include"
try() {
    sed -E "$2" "$root/include/tessera.h" >"$scratch/include/tessera.h"
    ! cmp -s "$root/include/tessera.h" "$scratch/include/tessera.h" || { echo "self-test: '$2' changes nothing"; exit 1; }
    describe "$scratch/include" >"$scratch/tried"
    found=$(changes "$scratch/now" "$scratch/tried")
    [ "$1" = "${found:+found}" ] || { printf '%s\n' "self-test, $2: expected '$1'" "$found"; exit 1; }
}
try found 's/^ +double grad_norm;/int64_t grad_norm;/'
try found 's/^ +double grad_norm;.*/float grad_norm, more;/'
try found 's/^\} tsr_job_report;/double more; &/; s/^ +double grad_norm;/int64_t grad_norm;/'
try found 's/^\} tsr_job_bootstrap;/void *more; &/'
try found 's/^\} tsr_job_options;/int more; &/' # in what was padding, which no older caller has set
try found 's/(\(\*log\)\(void \*user), int severity/\1, long severity/'
try found 's/TSR_JOB_ERROR, TSR_JOB_WARNING/TSR_JOB_WARNING, TSR_JOB_ERROR/'
try found 's/(tsr_job_save\(tsr_job \*job)/\1, int more/'
try '' 's/^\} tsr_job_(options|report|evaluation|plan_info);/double more, still_more; &/'
try '' 's/^(enum tsr_job_severity .*[A-Z])( *\};)/\1, TSR_JOB_UNKNOWN\2/'

if abidiff --leaf-changes-only --harmless "$baseline" "$scratch/now" >"$scratch/more"; then
    echo "$(wc -l <"$scratch/exported") functions, and their types, are as programs rely on"
else
    cat "$scratch/more"
    echo "nothing went; what came is not in tests/library/tessera.abi yet: run $again"
fi
