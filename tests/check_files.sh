#!/bin/sh
# check_files.sh [ROOT]: no source file above 700 lines, no unfinished place, no path of somebody's machine.
set -eu
root=${1:-$(cd "$(dirname "$0")/.." && pwd)}

# Prints what is wrong in tree $1.
wrong() {
    (
        cd "$1"
        files=$(find src include tests bench examples launch tools -type f \
            \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' -o -name '*.yaml' -o -path 'launch/*' \) \
            ! -name check_files.sh 2>/dev/null | LC_ALL=C sort)
        [ -z "$files" ] || {
            printf '%s\n' "$files" | grep -E '\.(c|h|cu|cuh)$' | xargs -r wc -l |
                awk '$2 != "total" && $1 > 700 { print $2 ": " $1 " lines, 700 at most" }'
            printf '%s\n' "$files" | xargs grep -nE '\b(TODO|FIXME|XXX)\b|not implemented|unimplemented' /dev/null || true
            printf '%s\n' "$files" | xargs grep -nE '(^|[^A-Za-z0-9_.$}/])/(home|root|work|Users)/' /dev/null || true
        }
    )
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/src/base" "$scratch/launch"
seq 701 >"$scratch/src/base/long.c"
seq 701 >"$scratch/src/base/long.cu"
seq 700 >"$scratch/src/base/fits.cuh"
echo '/* TODO: more */' >"$scratch/src/base/a.c"
echo 'cd /home/somebody/tree' >"$scratch/launch/x"
echo 'cd "$root/src"' >"$scratch/launch/fine"
if [ "$(wrong "$scratch" | wc -l)" -ne 4 ]; then
    echo "self-test: expected four complaints, found:"
    wrong "$scratch"
    exit 1
fi
found=$(wrong "$root")
[ -z "$found" ] || { printf '%s\n' "$found"; exit 1; }
echo "no file is too long or unfinished"
