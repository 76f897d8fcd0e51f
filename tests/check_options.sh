#!/bin/sh
# check_options.sh CMAKE_OPTION...: the tree configures with its options off, each alone and all of them, as packages and
# machines without CMocka build it.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for off in "-DTESSERA_TESTS=OFF" "-DTESSERA_BENCH=OFF" "-DTESSERA_TESTS=OFF -DTESSERA_BENCH=OFF"; do
    # shellcheck disable=SC2086
    cmake -S "$root" -B "$scratch/build" -DTESSERA_CUDA=OFF "$@" $off >"$scratch/log" 2>&1 || {
        echo "cmake $off fails:"
        cat "$scratch/log"
        exit 1
    }
    rm -rf "$scratch/build"
done
echo "it configures without tests, without benchmarks and without both"
