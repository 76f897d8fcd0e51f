#!/bin/sh
# Builds and runs the two-slot spike on every GPU of this machine: bench/spike/run.sh OUT.json [COMMIT]
# Needs nvcc, cuBLASLt and NCCL. OUT.json gets the commit, the clocks before and after, and all runs.
set -eu
out=${1:?usage: bench/spike/run.sh OUT.json [COMMIT]}
commit=${2:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export NCCL_NVLS_ENABLE=0

clocks() {
    nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader,nounits |
        awk -F', *' '{printf "%s{\"sm_mhz\":%s,\"watts\":%s,\"celsius\":%s}", (NR > 1 ? "," : ""), $1, $2, $3}'
}

nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -o "$work/two_slots" "$here/two_slots.cu" \
    -lcublasLt -lnccl -lpthread
{
    printf '{"commit":"%s","clocks_before":[%s],\n"benches":[' "$commit" "$(clocks)"
    "$work/two_slots" 16 8192
    for ctas in 4 8 16; do
        printf ','
        "$work/two_slots" 16 8192 "$ctas" 2
    done
    printf ','
    "$work/two_slots" 16 2048
    printf '],\n"clocks_after":[%s]}\n' "$(clocks)"
} >"$out"
