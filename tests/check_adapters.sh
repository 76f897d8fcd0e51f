#!/bin/sh
# check_adapters.sh PROGRAM: the example with several adapters, shortened. On two ranks each has the adapter of a run of its own,
# bit for bit; so have adapters that share micro-batches, on one rank and two; a run that is stopped by a signal says how to go on, and resumed on one rank it has the same; so has an adapter
# that is resumed alone; the plan and the data of all are printed; and what is for one adapter is refused.
set -eu
program=$1
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"
job=examples/adapters.yaml
keys="max_train_samples=60 max_eval_samples=4 per_device_train_batch_size=1 total_batch_size=2 overwrite_output_dir=false"

wrong() {
    echo "check_adapters: $*" >&2
    cat "$scratch/log" >&2
    exit 1
}

same() {
    for name in lora dora preferences; do
        cmp "$scratch/$1/$name/adapter_model.safetensors" "$scratch/$2/$name/adapter_model.safetensors" || wrong "$2: another adapter $name"
    done
}

# stopped_at LINE ARGUMENT...: trains, and is interrupted once the log has the line.
stopped_at() {
    line=$1
    shift
    "$program" train "$@" >"$scratch/out" 2>"$scratch/log" &
    process=$!
    for _ in $(seq 600); do
        ! grep -q "^$line" "$scratch/log" || break
        sleep 0.05
    done
    kill -INT $process 2>/dev/null || wrong "it had ended before it was stopped"
    wait $process && wrong "a stop is no success"
    return 0
}

# shellcheck disable=SC2086
launch/run -n 2 "$program" train $job $keys max_steps=6 "output_dir=$scratch/all" >"$scratch/out" 2>"$scratch/log" || wrong "no run"
grep -q '^adapters 3, a step of each in turns; each has the bits of a run of its own$' "$scratch/log" || wrong "it does not say how they share"
grep -q '^dora step 6/6 ' "$scratch/log" || wrong "no line says whose step it is"
for name in lora dora preferences; do
    # A run's own job.yaml is that of a job of its own.
    "$program" train "$scratch/all/$name/job.yaml" "output_dir=$scratch/single/$name" >"$scratch/out" 2>"$scratch/log" ||
        wrong "$name does not run alone"
done
same all single

# Stopped when all have begun.
# shellcheck disable=SC2086
stopped_at 'preferences step 1/' $job $keys max_steps=6 progress=lines logging_steps=1 "output_dir=$scratch/parts"
grep -q 'with a checkpoint of each adapter; to continue: .* train examples/adapters.yaml resume_from_checkpoint=true' "$scratch/log" ||
    wrong "it does not say how to go on"
cp -r "$scratch/parts" "$scratch/apart"
# shellcheck disable=SC2086
"$program" train $job $keys max_steps=6 resume_from_checkpoint=true "output_dir=$scratch/parts" >"$scratch/out" 2>"$scratch/log" || wrong "it does not resume"
same all parts
"$program" train $job $keys max_steps=6 resume_from_checkpoint=true "output_dir=$scratch/parts" >"$scratch/out" 2>"$scratch/log" || wrong "finished, and no success"
[ "$(grep -c 'all of its 6 steps are done' "$scratch/log")" = 3 ] || wrong "it does not say that all are finished"
"$program" resume "$scratch/apart/dora" "output_dir=$scratch/apart/dora" >"$scratch/out" 2>"$scratch/log" || wrong "one alone does not resume"
cmp "$scratch/all/dora/adapter_model.safetensors" "$scratch/apart/dora/adapter_model.safetensors" || wrong "resumed alone: another adapter"

"$program" plan $job >"$scratch/out" 2>"$scratch/log" || wrong "no plan"
[ "$(grep -c '^adapter ' "$scratch/out")" = 3 ] && grep -q '^all 3 adapters ' "$scratch/out" || wrong "the plan is not of all"
printf '{"roofs":[{"device":"CPU","copy_bytes_per_s":1e10,"matmul_float32_flops_per_s":1e11}]}' >"$scratch/roofs.json"
"$program" plan $job --roofs "$scratch/roofs.json" >"$scratch/out" 2>"$scratch/log" || wrong "no plan with roofs"
grep -q ' 50 steps in turns, about .*; one after the other takes as long, and loads the base 3 times' "$scratch/out" || wrong "no time of all"
"$program" plan $job --json 2>"$scratch/log" | tr -d ' \n' | grep -q '^\[{.*},{.*},{.*}\]$' || wrong "the plan is no list"
# Rows of two adapters in shared micro-batches: the same bits on two ranks and on one, and stopped and resumed.
sed -e '/use_dora/d' -e '/name: preferences/,$d' $job >"$scratch/mixed.yaml"
mixed="$scratch/mixed.yaml $keys adapter_mixing=tokens max_steps=6 logging_steps=1 progress=lines"
# shellcheck disable=SC2086
launch/run -n 2 "$program" train $mixed "output_dir=$scratch/two" >"$scratch/out" 2>"$scratch/log" || wrong "no mixed run"
grep -q '^adapters 2, .* mixed micro-batches of at most .* tokens, .* % full' "$scratch/log" || wrong "it does not say what is mixed"
grep -q '^adapter_schedule: \(milp\|greedy\)  # resolved' "$scratch/two/dora/job.yaml" || wrong "the schedule is not resolved"
# shellcheck disable=SC2086
stopped_at 'dora step 2/' $mixed "output_dir=$scratch/one"
# shellcheck disable=SC2086
"$program" train $mixed resume_from_checkpoint=true "output_dir=$scratch/one" >"$scratch/out" 2>"$scratch/log" || wrong "the mixed run does not resume"
for name in lora dora; do
    cmp "$scratch/two/$name/adapter_model.safetensors" "$scratch/one/$name/adapter_model.safetensors" || wrong "mixed: another adapter $name"
done
# shellcheck disable=SC2086
"$program" plan $mixed --roofs "$scratch/roofs.json" >"$scratch/out" 2>"$scratch/log" || wrong "no plan of a mixed run"
grep -q ' mixed micro-batches of at most .* tokens, .* % full (packed in .* s), about ' "$scratch/out" &&
    grep -q '^ *one after the other takes about ' "$scratch/out" || wrong "the plan of a mixed run does not say what it takes"

[ "$("$program" data $job 2>"$scratch/log" | grep -c '^dataset')" -ge 3 ] || wrong "the data are not of all"

refused() {
    code=$1 words=$2
    shift 2
    got=0
    "$@" >"$scratch/out" 2>"$scratch/log" || got=$?
    [ $got = "$code" ] && grep -q "$words" "$scratch/log" || wrong "expected $code, '$words': $got"
}
refused 78 'this command is for one adapter' "$program" eval $job
refused 78 'this command is for one adapter' "$program" merge $job "output_dir=$scratch/merged"
refused 78 'is for one adapter; give one number' "$program" plan $job --ranks 1,2
refused 78 'there is nothing to translate' "$program" translate $job
refused 78 'not as an override' "$program" train examples/quickstart.yaml 'adapters=[{name: a}]' "output_dir=$scratch/refused"
refused 78 'does not go with use_dora' "$program" train $job adapter_mixing=tokens "output_dir=$scratch/refused"
sed 's/name: dora/name: lora/' $job >"$scratch/twice.yaml"
refused 78 'are both called lora' "$program" train "$scratch/twice.yaml" "output_dir=$scratch/refused"
[ ! -e "$scratch/refused" ] || wrong "something was written"
