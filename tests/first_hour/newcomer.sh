#!/bin/sh
# newcomer.sh: a newcomer's first hour: README's commands as they stand there, the mistakes that people make, and what is
# printed after each.
#
#   tests/first_hour/newcomer.sh [PYTHON]            in a fresh Debian 12 (a chroot that debootstrap makes), from
#                                                    launch/quickstart on; 5 to 10 minutes, mostly the build
#   tests/first_hour/newcomer.sh -s PROGRAM [DIR]    the session alone, with a program that is built; a test of CI
#
# PYTHON, outside the chroot, loads what was written with PEFT and Transformers (tools/requirements.txt); without it that
# is left out, and said. 77: no root, no debootstrap or no network. DIR: where the session leaves its files.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)

# ---- the session, in a directory as the tree's root is to a newcomer ----

steps=0
failed=0

# step CODE COMMAND [PATTERN...]: types COMMAND, which ends with CODE and prints (on either) a match of each extended
# regular expression. "output" has what was printed.
step() {
    code=$1 command=$2
    shift 2
    steps=$((steps + 1))
    got=0
    sh -c "$command" >output 2>&1 </dev/null || got=$?
    [ -z "${TESSERA_SHOW:-}" ] || { printf '\n$ %s\n' "$command"; head -n 30 output; }
    wrong=
    [ "$got" -eq "$code" ] || wrong="exit code $got, expected $code"
    for pattern in "$@"; do
        grep -qE -e "$pattern" output || wrong="$wrong
  expected: $pattern"
    done
    [ "$(awk 'length > most { most = length } END { print most + 0 }' output)" -lt 1500 ] || wrong="$wrong
  a line of more than 1500 characters"
    if [ -n "$wrong" ]; then
        failed=$((failed + 1))
        printf '\n$ %s\n' "$command"
        head -n 30 output | cut -c 1-1500 | sed 's/^/    /'
        echo "WRONG: $wrong"
    fi
}

# read_in_readme CODE COMMAND [PATTERN...]: a step whose command stands in README.
read_in_readme() {
    tr -s ' ' <"$root/README.md" | grep -qF -- "$2" || {
        failed=$((failed + 1))
        echo "README.md does not have: $2"
    }
    step "$@"
}

# Stops the training that is begun after its first step, as Ctrl-C does.
stop_early() {
    "$@" >output 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 200); do
        ! grep -qs '"step":1,' runs/first/metrics.jsonl || break
        sleep 0.05
    done
    kill -TERM "$pid" || :
    got=0
    wait "$pid" || got=$?
    steps=$((steps + 1))
    [ "$got" -eq 75 ] && grep -q 'resume runs/first' output || {
        failed=$((failed + 1))
        cat output
        echo "WRONG: a stopped training ended with $got, expected 75 and how to resume"
    }
}

# The first YAML block of README is job.yaml, with Parquet as its comment offers.
write_job() {
    awk '/^```yaml$/ { on = 1; next } /^```$/ { if (on) exit } on' "$root/README.md" >job.yaml
    grep -q '^dataset: chats.jsonl  *# or Parquet' job.yaml && grep -q '^chat_template: llama3' job.yaml || {
        echo "README.md: its job.yaml is not the one that this session knows"
        exit 1
    }
}

# What the newcomer has: a base model without a chat template, chats in Parquet, a second file to evaluate.
bring_files() {
    cp -r "$root/examples/tiny-llama" Llama-3.2-1B
    rm Llama-3.2-1B/chat_template.jinja
    cp "$root/tests/first_hour/data/chats.parquet" "$root/tests/first_hour/data/questions.parquet" .
    head -n 8 "$root/examples/data/gsm8k_eval.jsonl" >held_out.jsonl
    cp -r Llama-3.2-1B pointers
    for file in pointers/*.safetensors; do
        printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3967488\n' >"$file"
    done
    cp -r Llama-3.2-1B half-downloaded
    rm half-downloaded/model-00003-of-00004.safetensors
    cp -r Llama-3.2-1B no-tokenizer
    rm no-tokenizer/tokenizer.json
}

first_mistakes() {
    train="build/tessera train"
    step 64 "build/tessera" "a command is missing" "train job.yaml"
    step 64 "$train" "job.yaml is missing"
    step 64 "build/tessera job.yaml" "tessera train job.yaml"
    step 64 "build/tessera trian job.yaml" "did you mean 'train'"
    step 64 "$train chats.parquet" "rows" "dataset: chats.parquet"
    step 78 "$train jobs.yaml" "did you mean job.yaml\?"
    sed '/^chat_template/d; s/^model_name_or_path: *[^ ]*/model_name_or_path: meta-llama\/Llama-3.2-1B/' job.yaml >hub.yaml
    step 78 "$train hub.yaml" "hub.yaml:1: .*hf download meta-llama/Llama-3.2-1B"
    step 65 "$train job.yaml" "^tessera: job.yaml:2: dataset: chats.jsonl: No such file" "did you mean chats.parquet\?"
    sed -i 's/^dataset: chats.jsonl /dataset: chats.parquet /' job.yaml
    sed '/^chat_template/d' job.yaml >no_template.yaml
    step 78 "$train no_template.yaml" "no_template.yaml.*no chat template" "chat_template: chatml" "llama3"
    step 78 "$train job.yaml chat_template=llama" "did you mean llama3\?"
    echo '{{ messages | wordwrap }}' >odd.jinja
    step 65 "$train job.yaml chat_template=odd.jinja" "odd.jinja:1: the filter .wordwrap. is not supported; write"
    step 65 "$train job.yaml model_name_or_path=Lama-3.2-1B" "did you mean Llama-3.2-1B\?"
    step 65 "$train job.yaml model_name_or_path=pointers" "Git LFS pointer" "git lfs pull"
    step 65 "$train job.yaml model_name_or_path=half-downloaded" "model-00003-of-00004.safetensors: it is missing" \
        "download is not complete"
    step 65 "$train job.yaml model_name_or_path=no-tokenizer" "tokenizer.json: it is missing; download"
    step 65 "$train job.yaml dataset=questions.parquet" "questions.parquet: row 1" '"question", "answer"' "field_instruction"
    step 78 "$train job.yaml lerning_rate=1e-4" "did you mean learning_rate\?"
    step 78 "$train job.yaml lora_r=sixteen" "found 'sixteen'; expected a whole number"
    step 78 "$train job.yaml memory_budget=20" "memory_budget"
    step 78 "$train job.yaml lora_target_modules=q_prj" "q_prj" "q_proj"
    step 64 "$train job.yaml lora_r = 8" "lora_r=" "without spaces"
    printf 'model_name_or_path: Llama-3.2-1B\ndataset:chats.parquet\noutput_dir: runs/x\n' >no_space.yaml
    step 78 "$train no_space.yaml" "no_space.yaml:2:" "colon and a space"
    step 64 "launch/run -n 2 job.yaml" "job.yaml is not a program" "launch/run -n 2 build/tessera train job.yaml"
    [ ! -e runs ] || {
        failed=$((failed + 1))
        echo "WRONG: a refused job left $(find runs)"
    }
}

look_and_train() {
    read_in_readme 0 "build/tessera data job.yaml --show 2" "chats.parquet" "24 of 24 rows" "⟦Natalia sold 48/2"
    read_in_readme 0 "build/tessera plan job.yaml --ranks 4" "peak"
    stop_early build/tessera train job.yaml num_train_epochs=6
    read_in_readme 0 "build/tessera resume runs/first" "resuming from checkpoint-" "eval_loss .* after" \
        "^adapter  runs/first/adapter_model.safetensors" "PeftModel.from_pretrained"
    read_in_readme 78 "build/tessera train job.yaml" "already holds a run" "resume runs/first" "overwrite_output_dir"
    read_in_readme 0 "build/tessera train job.yaml lora_r=8 output_dir=runs/r8" "r 8, alpha" "step 2/2"
    read_in_readme 0 "launch/run -n 4 build/tessera train job.yaml output_dir=runs/four" "4 ranks" "step 2/2"
    read_in_readme 0 "launch/run -n 4 build/tessera eval runs/first" "eval_loss .* perplexity"
}

look_back() {
    read_in_readme 0 "build/tessera inspect runs/first --plot loss.svg" "^kind +run" "^status +done" "^total_steps +12"
    step 0 "head -n 1 loss.svg" "<svg"
    step 0 "build/tessera inspect runs" "first +Llama-3.2-1B +12 " "four" "r8"
    read_in_readme 0 "build/tessera inspect runs/first runs/r8" "lora_r"
    step 65 "build/tessera inspect run/first" "did you mean runs/first\?"
    step 65 "build/tessera inspect chats.parquet" "Parquet" "tessera data"
    step 78 "build/tessera resume first" "did you mean runs/first\?"
    step 64 "build/tessera resume ." "is not a run"
    step 64 "build/tessera resume runs" "runs is not a run" "contains the runs first, four, r8"
    step 78 "build/tessera resume runs/first lora_r=4" "lora_r: found 4" "another output_dir"
    step 0 "build/tessera resume runs/first" "is finished" "raise num_train_epochs to train on"
}

take_away() {
    step 78 "build/tessera merge job.yaml" "init_adapter" "tessera merge runs/first"
    step 78 "build/tessera merge runs/first output_dir=runs/first" "output_dir" "another directory"
    read_in_readme 0 "build/tessera merge runs/first" "output_dir +runs/first-merged"
    step 78 "build/tessera merge runs/first" "already holds a model" "overwrite_output_dir"
    read_in_readme 0 "build/tessera quantize job.yaml output_dir=nf4" "quantized_weights +42"
}

# session PROGRAM DIRECTORY
session() {
    program=$1
    mkdir -p "$2/build"
    cd "$2"
    ln -s "$program" build/tessera
    [ ! -e "${program%/*}/tessera_loopback.so" ] || ln -s "${program%/*}/tessera_loopback.so" build/
    ln -s "$root/launch" launch
    begun=$(date +%s)
    bring_files
    write_job
    first_mistakes
    look_and_train
    look_back
    take_away
    echo "$steps commands in $(($(date +%s) - begun)) s, $failed not as expected"
    [ "$failed" -eq 0 ]
}

# ---- the fresh Debian ----

skip() {
    echo "skipped: $1"
    exit 77
}

inside() {
    chroot "$debian" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"
}

leave() {
    umount "$debian/dev/shm" "$debian/dev/pts" "$debian/proc" 2>/dev/null || :
    rm -rf --one-file-system "$debian"
}

enter() {
    mkdir -p "$debian/proc" "$debian/dev/shm" "$debian/dev/pts"
    mount -t proc proc "$debian/proc" && mount -t tmpfs tmpfs "$debian/dev/shm" || skip "this container may not mount"
    cp /etc/resolv.conf "$debian/etc/"
    mkdir -p "$debian/srv/tessera"
    (cd "$root" && git archive HEAD) | tar -x -C "$debian/srv/tessera"
}

# PEFT's model of the adapter and the merged one say nearly the same.
load_in_peft() {
    "$1" - "$2" <<'PYTHON'
import sys
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
at = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(f"{at}/runs/first")
ids = tokenizer.apply_chat_template([{"role": "user", "content": "What is 2 + 3?"}], return_tensors="pt",
                                    add_generation_prompt=True, return_dict=True)["input_ids"]
base = AutoModelForCausalLM.from_pretrained(f"{at}/Llama-3.2-1B", dtype=torch.float32)
merged = AutoModelForCausalLM.from_pretrained(f"{at}/runs/first-merged", dtype=torch.float32)
with torch.no_grad():
    before = base(ids).logits
    adapted = PeftModel.from_pretrained(base, f"{at}/runs/first")(ids).logits
    far, off = (adapted - before).abs().max().item(), (merged(ids).logits - adapted).abs().max().item()
print(f"PEFT: the adapter moves logits by up to {far:.3f}; the merged model's differ from them by up to {off:.3f}")
sys.exit(not far > 10 * off)
PYTHON
}

whole() {
    python=${1:-}
    [ "$(id -u)" -eq 0 ] || skip "only root can make a chroot"
    command -v debootstrap >/dev/null || skip "debootstrap is not installed: apt-get install debootstrap"
    debian=$(mktemp -d)
    trap leave EXIT
    start=$(date +%s)
    debootstrap --variant=minbase bookworm "$debian" >"$debian.log" 2>&1 || {
        tail -n 3 "$debian.log"
        rm -f "$debian.log"
        skip "debootstrap failed (is there a network?)"
    }
    rm -f "$debian.log"
    enter
    echo "a fresh Debian 12 after $(($(date +%s) - start)) s"
    inside sh -c 'cd /srv/tessera && launch/quickstart' >"$debian/quickstart" 2>&1 </dev/null || {
        tail -n 40 "$debian/quickstart"
        exit 1
    }
    for words in "eval_loss .* before" "^adapter " "^Held-out loss on GSM8K" "^Trained in"; do
        grep -qE "$words" "$debian/quickstart" || { echo "launch/quickstart does not print: $words"; exit 1; }
    done
    echo "launch/quickstart ended after $(($(date +%s) - start)) s: $(grep '^Held-out' "$debian/quickstart")"
    inside sh -c 'cd /srv/tessera && build/tessera env --measure' >"$debian/env" 2>&1
    grep -q "^backends\|processor\|cpu" "$debian/env" || { cat "$debian/env"; exit 1; }
    inside /srv/tessera/tests/first_hour/newcomer.sh -s /srv/tessera/build/tessera /srv/session
    if [ -n "$python" ]; then
        load_in_peft "$python" "$debian/srv/session" 2>"$debian/peft" || { cat "$debian/peft"; exit 1; }
    else
        echo "not loaded in PEFT: no PYTHON was named"
    fi
    echo "all after $(($(date +%s) - start)) s"
}

if [ "${1:-}" = -s ]; then
    [ $# -ge 2 ] && [ -x "$2" ] || {
        echo "usage: newcomer.sh -s PROGRAM [DIR]; PROGRAM is a tessera that is built"
        exit 64
    }
    if [ $# -ge 3 ]; then
        session "$(realpath "$2")" "$3"
    else
        scratch=$(mktemp -d)
        trap 'rm -rf "$scratch"' EXIT
        (session "$(realpath "$2")" "$scratch")
    fi
else
    whole "$@"
fi
