#!/bin/sh
# check_cards.sh NVCC ROOT: every kernel compiles and assembles for 8.0, the oldest cards, since launch/check builds for newer ones
# alone. Files whose code for 8.6 or 8.9 differs are compiled for 8.9 too. Compiled as fast as NVCC can, as nothing here is
# run; what optimizing may change, test_kernels_cuda_code and check_registers.sh see. 77: no NVCC.
set -eu
nvcc=$1 root=$2
[ -x "$nvcc" ] || { echo "no nvcc here: skipped"; exit 77; }
fast=
! "$nvcc" --help | grep -q Ofast-compile || fast=--Ofast-compile=max # 12.9
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Reads names of files; fails unless all of them compile for the card of number $1.
compile() {
    # shellcheck disable=SC2086
    xargs -P 2 -n 1 "$nvcc" -std=c++17 -DTSR_CUDA -D_GNU_SOURCE -I"$root/src" -I"$root/include" -Werror=all-warnings $fast \
        -gencode "arch=compute_$1,code=sm_$1" -fatbin -odir "$scratch"
}

# Reads names of files; prints those whose code for 8.6 or 8.9 differs from that for 8.0. No header may be one.
tell_apart() {
    xargs grep -lE '__CUDA_ARCH__ *(> *800|[<>]=? *8[1-9])'
}

printf '__global__ void bad(void)\n{\n    asm("wgmma.fence.sync.aligned;");\n}\n' >"$scratch/bad.cu"
! echo "$scratch/bad.cu" | compile 80 >"$scratch/bad.log" 2>&1 || { echo "self-test: what is for 9.0 compiles"; exit 1; }
! find "$root/src" -name '*.cuh' -o -name '*.h' | tell_apart || { echo "the header above has code of its own for 8.6 or 8.9: compile all files for 8.9 too"; exit 1; }
files=$(find "$root/src" -name '*.cu')
echo "$files" | compile 80
apart=$(echo "$files" | tell_apart)
echo "$apart" | compile 89
echo "$(echo "$files" | wc -l) files compile for 8.0, $(echo "$apart" | wc -l) for 8.9"
