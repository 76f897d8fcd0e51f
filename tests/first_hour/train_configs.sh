#!/bin/sh
# train_configs.sh PROGRAM [WORD]: trains a step of each configuration of configs/ that loads (those whose name holds WORD),
# and plans the job.yaml that `translate` makes of it: the same plan.
# Which load is for test_configs.c to judge; what can be planned must train.
set -eu
program=$1
word=${2:-}
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"

trained=0 refused=0 failed=0
for file in tests/first_hour/configs/*/*"$word"*; do
    # An .args file is a command line, a word a line.
    if [ "${file%.args}" != "$file" ]; then
        set --
        while IFS= read -r line; do
            case $line in '#'*) ;; *) set -- "$@" "$line" ;; esac
        done <"$file"
    else
        set -- train "$file"
    fi
    set -- "$@" output_dir="$scratch/out" overwrite_output_dir=true max_steps=1 gradient_accumulation_steps=1 progress=none
    # Files that name a directory for tokens name one of the tree's.
    ! grep -q dataset_prepared_path "$file" || set -- "$@" dataset_cache="$scratch/tokens"
    if ! (shift && "$program" plan "$@") >"$scratch/plan" 2>"$scratch/log"; then
        refused=$((refused + 1))
    elif ! (shift && "$program" translate "$@") >"$scratch/job.yaml" 2>"$scratch/log" ||
        ! "$program" plan "$scratch/job.yaml" 2>"$scratch/log" | cmp -s - "$scratch/plan"; then
        failed=$((failed + 1))
        echo "$file: the plan of its translation is another one:"
        cat "$scratch/job.yaml" "$scratch/log"
    elif "$program" "$@" >"$scratch/log" 2>&1 && [ -s "$scratch/out/adapter_model.safetensors" ]; then
        trained=$((trained + 1))
    else
        failed=$((failed + 1))
        echo "$file did not train a step:"
        tail -n 5 "$scratch/log"
    fi
    rm -rf "$scratch/out"
done
echo "$trained trained a step, $refused were refused, $failed failed"
[ $failed -eq 0 ] && [ $trained -ge 1 ]
