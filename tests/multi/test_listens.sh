#!/bin/sh
# test_listens.sh RUN PROGRAM: while a training on two ranks of this machine takes steps, none of its processes, mpirun's
# among them, listens on any address but the loopback's. 77 without ss.
set -eu
run=$1
program=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v ss >/dev/null || { echo "no ss: apt-get install iproute2"; exit 77; }
scratch=$(mktemp -d)
started=
trap '[ -z "$started" ] || kill "$started" 2>/dev/null || true; wait; rm -rf "$scratch"' EXIT
row='{"messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]}'
for _ in 1 2 3 4; do echo "$row"; done >"$scratch/rows.jsonl"

"$run" -n 2 "$program" train "$root/examples/quickstart.yaml" "model_name_or_path=$root/examples/tiny-llama" \
    "dataset=$scratch/rows.jsonl" eval_dataset=null max_steps=100000 per_device_train_batch_size=1 total_batch_size=2 \
    logging_steps=1 "output_dir=$scratch/out" 2>"$scratch/log" &
started=$!
left=300
until grep -q '^step 2/' "$scratch/log"; do
    left=$((left - 1))
    if [ $left -eq 0 ] || ! kill -0 $started; then
        cat "$scratch/log"
        echo "it takes no steps"
        exit 1
    fi
    sleep 0.1
done

# Of each process of the run its number and name, and what ss says it listens on.
cat /proc/[0-9]*/stat 2>/dev/null | awk -v run=$started '
    { parent[$1] = $4; name[$1] = $2 }
    END { for (pid in name) for (up = pid; up > 1; up = parent[up]) if (up == run) print pid, name[pid] }' >"$scratch/family"
ss -Hltunp | awk 'NR == FNR { name[$1] = $2; next }
    match($0, /pid=[0-9]+/) && (substr($0, RSTART + 4, RLENGTH - 4) in name) {
        print $5, name[substr($0, RSTART + 4, RLENGTH - 4)]
    }' "$scratch/family" - >"$scratch/listens"
cat "$scratch/listens"
[ "$(grep -c '(tessera)' "$scratch/family")" -eq 2 ] || { cat "$scratch/family"; echo "these are not two ranks"; exit 1; }
grep -q '(mpirun)' "$scratch/listens" || { echo "ss does not tell what mpirun listens on"; exit 1; }
if grep -vE '^(127\.[0-9.]+|\[::1\]):[0-9]+ ' "$scratch/listens"; then
    echo "FAILED: open to the network"
    exit 1
fi
kill $started
code=0
wait $started || code=$?
started=
[ $code -eq 75 ] || { cat "$scratch/log"; echo "FAILED: stopped, it ended with $code"; exit 1; }
echo "listens on the loopback address alone"
