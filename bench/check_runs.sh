#!/bin/sh
# check_runs.sh BENCH_MODEL: a list of runs in one process, and the tables of bench/tell, on the CPU: every line of the list
# gives one of JSON, one that cannot run says so and stops none after it, a step's timeline adds up, rows that plan names as
# the longest run, and ratios are those of the milliseconds.
set -eu
bench_model=$1
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

wrong() {
    echo "check_runs: $*" >&2
    exit 1
}

# ---- a list ----

cat >"$scratch/list" <<'END'
# comments and empty lines are none

--adapter lora --rank 4 --batch 2 --length 64
--adapter dora --rank 4 --batch 2 --length 64 --recompute full lora_dropout=0.05 load_in_4bit=false
--adapter lora --rank 4 lora_dropout=2   # no such dropout
--documents 8:40 --length 100 --timeline
END
code=0
"$bench_model" --shape tiny --layers 2 --batch 1 --length 32 --backend cpu --steps 2 --warmup 1 --scratch "$scratch" \
    --runs "$scratch/list" >"$scratch/out" 2>"$scratch/log" || code=$?
[ $code -eq 1 ] || wrong "a list with a bad line ended with $code"
[ "$(wc -l <"$scratch/out")" -eq 4 ] || wrong "four lines gave $(wc -l <"$scratch/out")"
[ "$(grep -c '"step_ms":' "$scratch/out")" -eq 3 ] || wrong "three of them have no step"
sed -n 3p "$scratch/out" | grep -q '"failed":".*lora_dropout' || wrong "the bad line does not say what is wrong"
sed -n 2p "$scratch/out" | grep -q '"nf4":false,"dropout":0.05' || wrong "the second is not as its line says"
sed -n 4p "$scratch/out" | grep -q '"rows":4' || wrong "100 tokens of 8 to 40 are not 4 documents"

# Kernels and what is between them are the traced step; other streams' kernels are told beside it.
sed -n 4p "$scratch/out" | sed 's/.*"timeline"://; s/{"kind"/\n&/g' | awk '
    {line = $0; gsub(/[{}"\[\]]/, "", line); n = split(line, part, ",")}
    {for (i = 1; i <= n; i++) {split(part[i], pair, ":"); value[pair[1]] = pair[2]}}
    NR > 1 && value["kind"] ~ /^(kernel|others|host|wait|between)$/ {sum += value["ms"]; kernels += value["kind"] == "kernel"}
    NR > 1 && value["ms"] < 0 {print value["kind"] " takes " value["ms"] " ms"; bad = 1; exit 1}
    END {
        if (bad) exit 1
        off = sum / value["traced_step_ms"] - 1
        if (kernels < 10 || off > 1e-4 || off < -1e-4) {print kernels " kernels, off by " off; exit 1}
    }' || wrong "the timeline does not add up"

# ---- the longest rows ----

# The same memory holds longer rows where the base may lie in host memory: each job has a longest row of its own, which runs,
# and that of the other job is refused.
limits() {
    "$bench_model" --shape tiny --layers 8 --backend cpu --adapter lora --rank 4 --recompute full --steps 1 --warmup 0 \
        --scratch "$scratch" "$@" load_in_4bit=false memory_budget=26MiB 2>>"$scratch/log"
}
# A number of a line of JSON.
number() {
    sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" "$scratch/$1"
}
: >"$scratch/log"
limits --longest 1 >"$scratch/card" || wrong "the longest row with the base on the card: $(tail -n 1 "$scratch/log")"
limits --longest 1 --offload auto >"$scratch/host" || wrong "the longest row: $(tail -n 1 "$scratch/log")"
limits --longest 4 --offload auto >"$scratch/part" || wrong "a part of the longest row: $(tail -n 1 "$scratch/log")"
most=$(number host longest)
[ "$most" -gt "$(number card longest)" ] || wrong "$most tokens, and $(number card longest) with the base on the card"
[ "$(number host length)" -eq "$most" ] && [ "$(number part length)" -eq $((most / 4)) ] || wrong "rows are not of $most tokens"
for length in "$most" $((most + 256)); do
    offload=$([ "$length" -eq "$most" ] && echo none || echo auto)
    code=0
    limits --batch 1 --length "$length" --offload "$offload" >"$scratch/refused" || code=$?
    [ $code -eq 1 ] && grep -q '"failed":".*memory_budget allows' "$scratch/refused" || wrong "$length tokens, offload $offload: $code"
done

# ---- tables ----

# run RANKS CARD DROPOUT NF4 ADAPTER MS
run() {
    echo "{\"ranks\":$1,\"card\":\"$2\",\"result\":{\"bench\":\"model\",\"shape\":\"s\",\"layers\":8,\"batch\":4,\"length\":2048,\
\"adapter\":\"$5\",\"r\":16,\"recompute\":\"none\",\"offload\":\"none\",\"overrides\":[],\"resident\":\"0\",\"nf4\":$4,\"dropout\":$3,\
\"step_ms\":$6,\"exposed_ms\":0.5,\"sol\":0.9}}"
}

{
    run 1 0 0.0 true lora 100
    run 1 1 0.0 true lora 102
    run 2 "" 0.0 true lora 104
} >"$scratch/ranks"
"$root/bench/tell" ranks "$scratch/ranks" >"$scratch/table"
grep -q 'lost 3.85 % of the first, 1.92 % of the slowest' "$scratch/table" || wrong "ranks: $(cat "$scratch/table")"
{
    run 1 "" 0.0 true lora 100
    run 1 "" 0.0 true dora 103
    run 1 "" 0.0 false lora 98
    run 1 "" 0.05 true lora 110
    echo '{"result":{"bench":"peft","shape":"s","layers":8,"batch":4,"length":2048,"adapter":"dora","r":16,"recompute":"none","nf4":true,"dropout":0.0,"step_ms":206}}'
} >"$scratch/runs"
"$root/bench/tell" taxes "$scratch/runs" >"$scratch/table"
[ "$(wc -l <"$scratch/table")" -eq 3 ] || wrong "taxes: $(cat "$scratch/table")"
for tax in 'DoRA / LoRA .* 1.030 ' 'NF4 / bf16 .* 1.020 ' 'dropout / none .* 1.100 '; do
    grep -q "$tax" "$scratch/table" || wrong "no $tax in $(cat "$scratch/table")"
done
"$root/bench/tell" table "$scratch/runs" | grep -q 'dora.*PEFT 206.00 ms, 0.500 of it' || wrong "the peer is not in the table"
for policy in layer:100 self_attn,mlp:105; do
    run 2 "" 0.0 true lora "${policy#*:}" | sed "s/\"overrides\":\[\]/\"overrides\":[\"unit_policy=${policy%:*}\"]/"
done >"$scratch/units"
"$root/bench/tell" units "$scratch/units" >"$scratch/table"
grep -q '2 ranks, .* self_attn,mlp *105.00 ms, 1.050 of layer' "$scratch/table" || wrong "units: $(cat "$scratch/table")"
echo "runs and their tables are as they should be"
