#!/bin/sh
# check_headers.sh [ROOT]: every header of src/ compiles by itself as C11, include/*.h also as C++17, with
# all warnings: nobody has to include another one first.
set -eu
root=${1:-$(cd "$(dirname "$0")/.." && pwd)}
cc=${CC:-cc} cxx=${CXX:-c++}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
warn='-Wall -Wextra -Werror -Wno-missing-field-initializers'
flags=$(pkg-config --cflags jansson)
open_mpi=$(pkg-config --cflags ompi-c | sed 's/-I/-isystem /g')
failed=0 count=0 cuda=0
# one FILE COMPILER ARGUMENT...
one() {
    file=$1
    shift
    count=$((count + 1))
    if ! "$@" -fsyntax-only "$scratch/unit" 2>"$scratch/errors"; then
        # A machine without the CUDA toolkit has none of its headers.
        if grep -qE 'fatal error: (cuda_runtime_api|cublasLt|cudnn|nccl)[.]h: No such file' "$scratch/errors"; then
            cuda=$((cuda + 1))
            return
        fi
        echo "$file does not compile by itself ($1):"
        head -n 5 "$scratch/errors"
        failed=$((failed + 1))
    fi
}
# The check can fail: a header that misses an include.
echo 'int64_t tsr_unknown_type(void);' >"$scratch/unit"
if "$cc" -x c -std=c11 -fsyntax-only "$scratch/unit" 2>/dev/null; then
    echo "self-test: the compiler takes an undeclared type"
    exit 1
fi
for header in $(cd "$root/src" && find . -name '*.h' | sed 's|^\./||' | LC_ALL=C sort); do
    echo "#include \"$header\"" >"$scratch/unit"
    case $header in *mpi*) mpi=$open_mpi ;; *) mpi= ;; esac
    # shellcheck disable=SC2086
    one "src/$header" "$cc" -x c -std=c11 -D_GNU_SOURCE $warn -Wno-unused-function $flags $mpi -I"$root/src" -I"$root/include"
done
for header in $(cd "$root/include" && find . -name '*.h' | sed 's|^\./||' | LC_ALL=C sort); do
    printf '#include "%s"\n#include "%s"\n' "$header" "$header" >"$scratch/unit"
    case $header in *mpi*) mpi=$open_mpi ;; *) mpi= ;; esac
    # shellcheck disable=SC2086
    one "include/$header" "$cc" -x c -std=c11 -pedantic $warn $mpi -I"$root/include"
    # shellcheck disable=SC2086
    one "include/$header" "$cxx" -x c++ -std=c++17 -pedantic $warn $mpi -I"$root/include"
done
[ "$failed" -eq 0 ] || { echo "$failed of $count headers"; exit 1; }
echo "$((count - cuda)) headers compile by themselves, $cuda need CUDA headers that are not here"
