#!/bin/sh
# check_families.sh [ROOT]: no family of models is known outside of src/model/arch, and no number of linears is fixed.
set -eu
root=${1:-$(cd "$(dirname "$0")/.." && pwd)}

# Prints what is wrong in tree $1.
wrong() {
    (
        cd "$1"
        for type in $(cat src/model/arch/*.c | sed -n 's/.*model_type = "\([^"]*\)".*/\1/p'); do
            find src -name '*.[ch]' ! -path 'src/model/arch/*' -exec grep -nF "\"$type\"" /dev/null {} + || true
        done
        grep -rn 'LINEAR_COUNT' src || true
    )
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/src/model/arch" "$scratch/src/job"
echo 'const tsr_arch a = {.model_type = "one_text",' >"$scratch/src/model/arch/one.c"
echo 'bool b = !strcmp(type, "one_text"); bool c = !strcmp(type, "one");' >"$scratch/src/job/a.c"
echo 'int linear[TSR_LINEAR_COUNT];' >"$scratch/src/job/b.h"
if [ "$(wrong "$scratch" | wc -l)" -ne 2 ]; then
    echo "self-test: expected two complaints, found:"
    wrong "$scratch"
    exit 1
fi
found=$(wrong "$root")
[ -z "$found" ] || { printf '%s\n' "$found"; exit 1; }
echo "families are known in src/model/arch alone"
