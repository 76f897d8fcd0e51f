#!/bin/sh
# check_cards.sh NVCC ROOT: every kernel compiles and assembles for the oldest cards, and for those whose multiprocessors hold 1536
# threads, for a build that is for newer cards alone (launch/check). Compiled as fast as NVCC can, as nothing here is run; what
# optimizing may change, test_kernels_cuda_code and check_registers.sh see. 77: no NVCC.
set -eu
nvcc=$1 root=$2
[ -x "$nvcc" ] || { echo "no nvcc here: skipped"; exit 77; }
fast=
! "$nvcc" --help | grep -q Ofast-compile || fast=--Ofast-compile=max # 12.9
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Reads names of files; fails unless all of them compile.
compile() {
    # shellcheck disable=SC2086
    xargs -P 2 -n 1 "$nvcc" -std=c++17 -DTSR_CUDA -D_GNU_SOURCE -I"$root/src" -I"$root/include" -Werror=all-warnings $fast \
        -gencode arch=compute_80,code=sm_80 -gencode arch=compute_89,code=sm_89 -fatbin -odir "$scratch"
}

printf '__global__ void bad(void)\n{\n    asm("wgmma.fence.sync.aligned;");\n}\n' >"$scratch/bad.cu"
! echo "$scratch/bad.cu" | compile >"$scratch/bad.log" 2>&1 || { echo "self-test: what is for 9.0 compiles"; exit 1; }
files=$(find "$root/src" -name '*.cu')
echo "$files" | compile
echo "$(echo "$files" | wc -l) files compile"
