#!/bin/sh
# check_registers.sh NVCC ROOT: the attention kernels of cards that no test of this project ran on, compiled for each of them, as
# drivers do, from PTX for 8.0 (that for 8.9 says the same): they compile, and what does not fit the registers is a few words. 77: no NVCC.
set -eu
MOST=160 # bytes of a thread that are stored aside: 1 % of what its loops move. Measured: 88

# Reads ptxas -v; prints the kernels that store more than $1 bytes aside, and then of each card how many kernels there are and the
# most that any stores.
wrong_kernels() {
    awk -v allowed="$1" '
        /Compiling entry function/ { name = $(NF - 2); card = $NF; gsub(/\047/, "", card) }
        /bytes spill stores/ {
            for (i = 2; i <= NF; i++) if ($i == "bytes" && $(i + 1) == "spill" && $(i + 2) ~ /^stores/) bytes = $(i - 1)
            if (!(card in count)) order[++cards] = card
            count[card]++
            if (bytes > most[card]) most[card] = bytes
            if (bytes > allowed) print "wrong: " name " on " card " stores " bytes " bytes aside"
        }
        END { for (i = 1; i <= cards; i++) print order[i] ": " count[order[i]] " kernels, at most " most[order[i]] + 0 " bytes" }'
}

[ -x "$1" ] || { echo "no nvcc here: skipped"; exit 77; }
made_up="ptxas info    : Compiling entry function 'good' for 'sm_86'
    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'bad' for 'sm_86'
    8 bytes stack frame, 400 bytes spill stores, 4 bytes spill loads"
found=$(printf '%s\n' "$made_up" | wrong_kernels 160)
[ "$found" = "wrong: 'bad' on sm_86 stores 400 bytes aside
sm_86: 2 kernels, at most 400 bytes" ] || { printf 'self-test:\n%s\n' "$found"; exit 1; }

cards=
for card in sm_80 sm_86 sm_89 sm_100 sm_103 sm_120; do
    if "$1" --list-gpu-code | grep -qx "$card"; then cards=${cards:+$cards,}$card; else echo "$card: newer than this nvcc"; fi
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for file in attention_mma attention_mma_backward; do
    "$1" -std=c++17 -O3 -DTSR_CUDA -D_GNU_SOURCE -I"$2/src" -I"$2/include" -gencode "arch=compute_80,code=[$cards]" -fatbin \
        -Xptxas -v -o "$scratch/fatbin" "$2/src/kernels/$file.cu" >"$scratch/$file.log" 2>&1 || { cat "$scratch/$file.log"; exit 1; }
done
cat "$scratch"/*.log | wrong_kernels $MOST >"$scratch/found"
cat "$scratch/found"
[ "$(grep -c ' kernels, ' "$scratch/found")" -eq "$(echo "$cards" | tr ',' '\n' | wc -l)" ] || { echo "a card has no kernel"; exit 1; }
! grep -q '^wrong' "$scratch/found"
