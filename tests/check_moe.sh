#!/bin/sh
# check_moe.sh PROGRAM: the example with experts, shortened, on two ranks: the model is made, its held-out loss falls by 1 or
# more, the log counts every token of step 1 for four experts of each layer, and the merged model and the quantized one have
# the losses that they should.
set -eu
program=$1
root=$(cd "$(dirname "$0")/.." && pwd)
command -v python3 >/dev/null || exit 77
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"
python3 tools/make_tiny_moe.py examples/tiny-llama "$scratch/model"
keys="model_name_or_path=$scratch/model max_eval_samples=16"
job=examples/moe.yaml
eval_loss() {
    # shellcheck disable=SC2086
    "$program" eval $job $keys "$@" --json 2>"$scratch/log" | sed -n 's/.*"eval_loss":\([0-9.]*\).*/\1/p'
}
# shellcheck disable=SC2086
launch/run -n 2 "$program" train $job $keys max_steps=12 warmup_steps=2 log_level=debug "output_dir=$scratch/run" >"$scratch/out" 2>"$scratch/log" ||
    { cat "$scratch/log"; exit 1; }
tokens=$(sed -n 's/^{"step":1,.*"input_tokens":\([0-9]*\).*/\1/p' "$scratch/run/metrics.jsonl")
grep '^step 1: layer .: tokens of each expert:' "$scratch/log" | cut -d : -f 4 | awk -v tokens="$tokens" '
    { sum = 0; for (i = 1; i <= NF; i++) sum += $i; if (NF != 8 || sum != 4 * tokens) bad = 1 }
    END { exit bad || NR != 6 }' || { echo "six layers do not count $tokens tokens four times"; exit 1; }
losses=$(sed -n 's/.*"eval_loss":\([0-9.]*\).*/\1/p' "$scratch/run/metrics.jsonl" | tr '\n' ' ')
# shellcheck disable=SC2086
"$program" merge $job $keys "init_adapter=$scratch/run" "output_dir=$scratch/merged" 2>"$scratch/log" || { cat "$scratch/log"; exit 1; }
# shellcheck disable=SC2086
"$program" quantize $job $keys "output_dir=$scratch/nf4" 2>"$scratch/log" || { cat "$scratch/log"; exit 1; }
plain=$(eval_loss load_in_4bit=false "init_adapter=$scratch/run")
merged=$(eval_loss load_in_4bit=false "model_name_or_path=$scratch/merged")
nf4=$(eval_loss "model_name_or_path=$scratch/nf4" "init_adapter=$scratch/run")
echo "$losses $plain $merged $nf4" | awk '{
    printf "held-out loss %s before, %s after; not quantized %s, merged %s; quantized before %s\n", $1, $2, $3, $4, $5
    if (NF != 5 || $1 - $2 < 1) { print "it should fall by 1"; exit 1 }
    if ($3 - $4 > 0.01 || $4 - $3 > 0.01) { print "the merged model has another loss"; exit 1 }
    if ($2 - $5 > 1e-6 || $5 - $2 > 1e-6) { print "the quantized model has another loss"; exit 1 }
}' || { cat "$scratch/log"; exit 1; }
"$program" inspect "$scratch/nf4" | grep -q "experts\.\*\.w1\.weight" || { echo "inspect lists experts one by one"; exit 1; }
