#!/bin/sh
# check_python.sh PROGRAM: the Python that a run prints and that its README.md shows compiles, and uses no name that it
# does not bring. (tools/check_peft.py executes it.) Exit 77 without python3.
set -eu
program=$1
root=$(cd "$(dirname "$0")/.." && pwd)
command -v python3 >/dev/null 2>&1 || { echo "python3 is not here: skipped"; exit 77; }
# The check can fail.
if echo 'model = PeftModel.from_pretrained("x")' | "$root/tests/python_names.py" 2>/dev/null; then
    echo "self-test: nothing is wrong with a name that is nowhere defined"
    exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
echo '{"input_ids": [10, 11, 12]}' >"$scratch/rows.jsonl"
"$program" train "$root/examples/quickstart.yaml" "model_name_or_path=$root/examples/tiny-llama" max_steps=1 warmup_steps=0 \
    assistant_only_loss=auto "dataset=$scratch/rows.jsonl" eval_dataset=null "output_dir=$scratch/it's \"a\" run" 2>"$scratch/log" ||
    { cat "$scratch/log"; exit 1; }
sed -n 's/^python   //p' "$scratch/log" | "$root/tests/python_names.py"
sed -n '/^```python$/,/^```$/{/^```/!p}' "$scratch/it's \"a\" run/README.md" | "$root/tests/python_names.py"
echo "the Python that is printed knows its names"
