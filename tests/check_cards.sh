#!/bin/sh
# check_cards.sh NVCC ROOT: every kernel compiles and assembles for 8.0, the oldest cards, since launch/check builds for newer ones
# alone. Files whose code for 8.6 or 8.9 differs, by themselves or by a header, are compiled for 8.9 too. Compiled as fast as NVCC can, as nothing here is
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

# Reads names of files; prints those whose code for 8.6 or 8.9 differs from that for 8.0.
tell_apart() {
    xargs grep -lE '__CUDA_ARCH__ *(> *800|[<>]=? *8[1-9])' || :
}

# Reads names of files; prints those that include one of the headers in the lines of $1.
including() {
    xargs grep -lE "#include \"($(echo "$1" | sed 's/\./\\./g' | paste -sd '|'))\"" || :
}

printf '__global__ void bad(void)\n{\n    asm("wgmma.fence.sync.aligned;");\n}\n' >"$scratch/bad.cu"
! echo "$scratch/bad.cu" | compile 80 >"$scratch/bad.log" 2>&1 || { echo "self-test: what is for 9.0 compiles"; exit 1; }
cd "$root/src"
all=$(find . -name '*.cuh' -o -name '*.h' | sed 's|^\./||')
files=$(find "$root/src" -name '*.cu')
headers=$(echo "$all" | tell_apart)
[ -n "$headers" ] || { echo "self-test: e4m3 is for 8.9 on, and no header says so"; exit 1; }
before=
while [ "$headers" != "$before" ]; do
    before=$headers
    headers=$({ echo "$before"; echo "$all" | including "$before"; } | sort -u)
done
echo "$files" | compile 80
apart=$({ echo "$files" | tell_apart; echo "$files" | including "$headers"; } | sort -u)
echo "$apart" | compile 89
echo "$(echo "$files" | wc -l) files compile for 8.0, $(echo "$apart" | wc -l) for 8.9"
