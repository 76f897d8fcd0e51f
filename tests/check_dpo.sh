#!/bin/sh
# check_dpo.sh PROGRAM: the example with preferences, shortened. On two ranks it learns; a run that is killed and resumed on one
# rank has the same adapter, bit for bit; its evaluation reports accuracy and margins; wrong keys and rows end with their exit
# codes and write nothing; and the commands of TRL's documentation run.
set -eu
program=$1
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"
job=examples/dpo.yaml
keys="num_train_epochs=1 eval_strategy=no save_strategy=steps save_steps=2 overwrite_output_dir=false"

wrong() {
    echo "check_dpo: $*" >&2
    cat "$scratch/log" >&2
    exit 1
}

# shellcheck disable=SC2086
launch/run -n 2 "$program" dpo $job $keys "output_dir=$scratch/whole" >"$scratch/out" 2>"$scratch/log" || wrong "no run"
losses=$(sed -n 's/^{"step":[0-9]*,.*"loss":\([0-9.]*\),.*/\1/p' "$scratch/whole/metrics.jsonl" | sed -n '1p;$p' | tr '\n' ' ')
echo "$losses" | awk '{ print "loss " $1 " in the first step, " $2 " in the last"; exit !($1 > 0.692 && $1 < 0.694 && $2 < 0.55) }' ||
    wrong "it did not learn"

# Killed when its second checkpoint is there.
# shellcheck disable=SC2086
"$program" train $job $keys "output_dir=$scratch/parts" >"$scratch/out" 2>"$scratch/log" &
process=$!
for _ in $(seq 600); do
    [ ! -f "$scratch/parts/checkpoint-4/manifest.json" ] || break
    sleep 0.1
done
kill -9 $process 2>/dev/null || wrong "it had ended before it was killed"
wait $process 2>/dev/null || true
"$program" resume "$scratch/parts" >"$scratch/out" 2>"$scratch/log" || wrong "it does not resume"
cmp "$scratch/whole/adapter_model.safetensors" "$scratch/parts/adapter_model.safetensors" || wrong "another adapter"

"$program" eval "$scratch/parts" --json >"$scratch/out" 2>"$scratch/log" || wrong "no evaluation"
grep -q '"perplexity":null.*"eval_rewards/accuracies":\(1\|0\.[0-9]*\),.*"eval_rewards/margins":' "$scratch/out" ||
    wrong "an evaluation without its rewards: $(cat "$scratch/out")"

# refuse CODE WORDS key=value ...
refuse() {
    code=$1 words=$2
    shift 2
    got=0
    "$program" train $job "output_dir=$scratch/refused" "$@" >"$scratch/out" 2>"$scratch/log" || got=$?
    [ $got -eq "$code" ] || wrong "$* ended with $got, not $code"
    grep -q "$words" "$scratch/log" || wrong "$* does not say '$words'"
    [ ! -e "$scratch/refused" ] || wrong "$* wrote something"
}
refuse 78 "loss_type: found 'sigmoit'" loss_type=sigmoit
refuse 78 "does not train lm_head" "modules_to_save=[lm_head]"
refuse 65 'gsm8k_eval.jsonl:1.*"chosen" and "rejected"' dataset=examples/data/gsm8k_eval.jsonl eval_dataset=null eval_strategy=no
echo '{"prompt": "a", "chosen": "b", "rejected": "b"}' >"$scratch/equal.jsonl"
refuse 65 'equal.jsonl:1.*are equal' "dataset=$scratch/equal.jsonl" eval_dataset=null eval_strategy=no
echo '{"prompt": "a", "completion": "b", "label": "yes"}' >"$scratch/label.jsonl"
refuse 65 'label.jsonl:1.*"label" is "yes"' "dataset=$scratch/label.jsonl" eval_dataset=null eval_strategy=no objective=kto loss_type=null

# The commands of TRL's documentation, on rows with the columns of their data sets.
question='{"role":"user","content":"How much is 1 plus 3?"}'
right='{"role":"assistant","content":"It is 4."}' no='{"role":"assistant","content":"I do not know."}'
echo "{\"chosen\":[$question,$right],\"rejected\":[$question,$no],\"score_chosen\":8.0,\"score_rejected\":2.0}" >"$scratch/binarized.jsonl"
echo "{\"prompt\":[$question],\"completion\":[$right],\"label\":true}" >"$scratch/mix.jsonl"
# documented COMMAND ROWS option ...
documented() {
    command=$1 rows=$2
    shift 2
    "$program" "$command" --model_name_or_path examples/tiny-llama --dataset_name "$scratch/$rows" --output_dir "$scratch/$command" \
        --per_device_train_batch_size 1 --num_train_epochs 1 --use_peft --lora_alpha=16 "$@" >"$scratch/out" 2>"$scratch/log" ||
        wrong "TRL's command for $command"
    [ -s "$scratch/$command/adapter_model.safetensors" ] || wrong "$command wrote no adapter"
}
documented dpo binarized.jsonl --learning_rate 5.0e-7 --gradient_accumulation_steps 8 --gradient_checkpointing --logging_steps 25 \
    --eval_strategy no --no_remove_unused_columns --lora_r 32
documented kto mix.jsonl --learning_rate 5e-7 --lr_scheduler_type=cosine --gradient_accumulation_steps 1 --eval_steps 500 \
    --warmup_steps=0.1 --load_in_4bit --lora_target_modules=all-linear --lora_r=16
documented orpo binarized.jsonl --learning_rate 8e-5 --gradient_accumulation_steps 1 --logging_steps 10 --eval_steps 500 \
    --logging_first_step --no_remove_unused_columns --lora_r 16
