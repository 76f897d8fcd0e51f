#!/bin/sh
# check_registers.sh NVCC ROOT: the attention kernels of cards that no test of this project ran on, compiled for each of them: they
# compile, and what does not fit the registers is a few words. 77: no NVCC.
set -eu
MOST=160 # bytes of a thread that are stored aside: 1 % of what its loops move. Measured: 88

# Reads ptxas -v; prints the kernels that store more than $1 bytes aside, and last how many there are and the most of any.
wrong_kernels() {
    awk -v allowed="$1" '
        /Function properties for/ { name = $NF }
        /bytes spill stores/ {
            count++
            for (i = 2; i <= NF; i++) if ($i == "bytes" && $(i + 1) == "spill" && $(i + 2) ~ /^stores/) bytes = $(i - 1)
            if (bytes > most) most = bytes
            if (bytes > allowed) print name ": " bytes " bytes"
        }
        END { print count + 0, most + 0 }'
}

[ -x "$1" ] || { echo "no nvcc here: skipped"; exit 77; }
made_up='ptxas info    : Function properties for good
    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for bad
    8 bytes stack frame, 400 bytes spill stores, 4 bytes spill loads'
[ "$(printf '%s\n' "$made_up" | wrong_kernels 160 | tr '\n' ' ')" = "bad: 400 bytes 2 400 " ] || {
    echo "self-test:"
    printf '%s\n' "$made_up" | wrong_kernels 160
    exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wrong=0
compiled=0
known=$("$1" --list-gpu-arch)
for arch in 80 86 89 100 103 120; do
    printf '%s\n' "$known" | grep -qx "compute_$arch" || { echo "sm_$arch: newer than this nvcc"; continue; }
    for file in attention_mma attention_mma_backward; do
        "$1" -std=c++17 -O3 -DTSR_CUDA -D_GNU_SOURCE -I"$2/src" -I"$2/include" -gencode "arch=compute_$arch,code=sm_$arch" -cubin \
            -Xptxas -v -o "$scratch/cubin" "$2/src/kernels/$file.cu" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
        found=$(wrong_kernels $MOST <"$scratch/log")
        echo "sm_$arch $file: $(printf '%s\n' "$found" | tail -n 1 | sed 's/ / kernels, at most /') bytes a thread aside"
        [ "$(printf '%s\n' "$found" | wc -l)" -eq 1 ] || { printf '%s\n' "$found" | sed '$d'; wrong=1; }
        compiled=$((compiled + 1))
        [ "${found##*
}" != "0 0" ] || { echo "no kernel in $file"; wrong=1; }
    done
done
[ $compiled -gt 0 ] || { echo "this nvcc knows none of these cards: skipped"; exit 77; }
exit $wrong
