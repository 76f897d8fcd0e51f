#!/bin/sh
# check_quickstart.sh PROGRAM: a shortened quick start on two ranks really learns: the held-out loss falls by 0.15 or
# more, the adapter is where the last lines say, and evaluating it gives the same loss again.
set -eu
program=$1
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"
short="max_steps=16 warmup_steps=3 max_eval_samples=24"
# shellcheck disable=SC2086
launch/run -n 2 "$program" train examples/quickstart.yaml $short "output_dir=$scratch/run" >"$scratch/out" 2>"$scratch/log" ||
    { cat "$scratch/log"; exit 1; }
fail() {
    echo "$1"
    cat "$scratch/log"
    exit 1
}
[ ! -s "$scratch/out" ] || fail "the training wrote to stdout"
for file in adapter_model.safetensors adapter_config.json README.md metrics.jsonl job.yaml plan.json; do
    [ -s "$scratch/run/$file" ] || fail "$file was not written"
done
grep -q "adapter .*$scratch/run" "$scratch/log" || fail "the end does not say where the adapter is"
grep -q "PeftModel.from_pretrained" "$scratch/log" || fail "the end does not say how to load the adapter"
losses=$(sed -n 's/.*"eval_loss":\([0-9.]*\).*/\1/p' "$scratch/run/metrics.jsonl" | tr '\n' ' ')
# shellcheck disable=SC2086
again=$(launch/run -n 2 "$program" eval examples/quickstart.yaml max_eval_samples=24 "init_adapter=$scratch/run" --json 2>/dev/null |
    sed -n 's/.*"eval_loss":\([0-9.]*\).*/\1/p')
echo "$losses $again" | awk '{
    printf "held-out loss %s before, %s after, %s when loaded again\n", $1, $2, $3
    if (NF != 3 || $1 - $2 < 0.15) { print "it should fall by 0.15"; exit 1 }
    if ($2 - $3 > 1e-6 || $3 - $2 > 1e-6) { print "the adapter that was written has another loss"; exit 1 }
}' || fail "losses: $losses; loaded again: $again"
