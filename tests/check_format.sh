#!/bin/sh
# check_format.sh [ROOT]: clang-format (version 14, Debian 12's) would change no file. Exit 77 without it.
set -eu
root=${1:-$(cd "$(dirname "$0")/.." && pwd)}
cd "$root"
format=
for name in clang-format-14 clang-format; do
    if command -v $name >/dev/null 2>&1 && $name --version | grep -q 'version 14\.'; then
        format=$name
        break
    fi
done
[ -n "$format" ] || { echo "clang-format 14 is not here: skipped"; exit 77; }
# The check can fail.
if printf 'int  x ;\n' | $format --dry-run -Werror --style=file --assume-filename=src/a.c 2>/dev/null; then
    echo "self-test: clang-format finds nothing wrong with 'int  x ;'"
    exit 1
fi
bad=$(find src include tests bench examples launch \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) | LC_ALL=C sort |
    xargs $format --dry-run -Werror 2>&1 | grep -E 'error:' | sed 's/: error:.*//' | sort -u || true)
if [ -n "$bad" ]; then
    printf '%s\n' "$bad"
    echo "these places are not as clang-format writes them: run $format -i on the files"
    exit 1
fi
echo "$(find src include tests bench examples launch \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) | wc -l) files are formatted"
