#!/usr/bin/env bash
# check_completion.sh SHARE: what bash completes with the installed script, in bash; and the syntax of those of zsh and
# fish, where these are installed.
set -u
share=$1
script=$share/bash-completion/completions/tessera
failed=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
touch job.yaml lora_job.yaml 'a file.yaml'

# shellcheck source=/dev/null
source "$script" || exit 1
[[ $(complete -p tessera) == *"-F _tessera tessera" ]] || { echo "tessera is not completed"; exit 1; }

# try LINE WORD...: completing the end of LINE gives at least these words; !WORD: not that one; =: these alone.
try() {
    local line=$1 exact='' word found
    shift
    if [[ ${1-} == = ]]; then
        exact=1
        shift
    fi
    COMP_LINE=$line COMP_POINT=${#line}
    read -ra COMP_WORDS <<<"$line"
    _tessera tessera
    found=" ${COMPREPLY[*]} "
    for word; do
        if [[ $word == !* && $found == *" ${word#!} "* ]] || [[ $word != !* && $found != *" $word "* ]]; then
            echo "'$line': expected $word, found: $found"
            failed=1
        fi
    done
    if [[ -n $exact && ${#COMPREPLY[@]} -ne $# ]]; then
        echo "'$line': expected only $*, found: $found"
        failed=1
    fi
}
try 'tessera ' train resume plan eval data merge quantize inspect env translate version sft
try 'tessera pl' = plan
try 'tessera plan --r' --ranks --roofs '!--json'
try 'tessera plan job.yaml --a' --all --adam_beta1
try 'tessera plan job.yaml --lon' = --longest
try 'tessera inspect runs --' = --json --plot --help
try 'tessera env --m' = --measure
try 'tessera train job.yaml lora_dr' = lora_dropout=
try 'tessera train job.yaml --lora_dr' = --lora_dropout
try 'tessera train job.yaml lr_scheduler_type=lin' = linear
try 'tessera train job.yaml --lr_scheduler_type lin' = linear
try 'tessera train job.yaml use_dora=' = true false
try 'tessera train job.yaml dtype=' auto float32 bfloat16 '!float16'
try 'tessera train job.yaml dataset=jo' = job.yaml
try 'tessera train --help lora_al' = lora_alpha
try 'tessera --help learning' = learning_rate
try 'tessera train lora_j' = # a file, which bash itself finds
try 'tessera train lora_' lora_r= lora_job.yaml
try 'tessera train ' =
try 'tessera plan --roofs ' =
try 'tessera inspect lora_d' =
COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}
try 'tessera train job.yaml lr_scheduler_type=lin' = lr_scheduler_type=linear
try 'tessera train job.yaml --use_dora=t' = --use_dora=true

if command -v zsh >/dev/null; then
    zsh -n "$share/zsh/site-functions/_tessera" || failed=1
fi
if command -v fish >/dev/null; then
    fish -n "$share/fish/vendor_completions.d/tessera.fish" || failed=1
fi
for file in "$script" "$share/zsh/site-functions/_tessera" "$share/fish/vendor_completions.d/tessera.fish"; do
    grep -q 'lr_scheduler_type' "$file" || { echo "$file: no keys"; failed=1; }
    if grep -n '@[A-Z_]*@' "$file"; then
        echo "$file: a marker is left"
        failed=1
    fi
done
exit $failed
