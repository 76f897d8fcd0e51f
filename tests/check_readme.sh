#!/bin/sh
# check_readme.sh PROGRAM: README's picture is what `inspect --plot` draws of examples/quickstart, its excerpt has that
# run's figures, and its times and memory are in the bench/results files that it names.
set -eu
program=$1
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"
run=examples/quickstart
failed=0
fail() {
    echo "README.md: $1"
    failed=1
}
has() {
    grep -qF -- "$1" README.md || fail "expected: $1"
}

"$program" inspect "$run" --plot "$scratch/loss.svg" >"$scratch/report"
cmp "$scratch/loss.svg" "$run/loss.svg" || fail "$run/loss.svg is not what \`inspect $run --plot\` draws"
has "src=\"$run/loss.svg\""

# The value of a key in the lines of metrics.jsonl that hold a pattern, by a format and over a unit.
value() {
    grep -- "$1" "$run/metrics.jsonl" | sed -n "s/.*\"$2\":\([0-9.e+-]*\).*/\1/p" |
        awk -v format="$3" -v unit="${4:-1}" '{ last = $1 } END { if (NR) printf format, last / unit }'
}
before=$(value '"step":0,' eval_loss %.4f)
after=$(value '"step":100,"eval' eval_loss %.4f)
has "eval_loss $before before, $after after"
has "peak $(value '"step":100,"epoch' device_bytes %.1f 1048576) MiB, "
for step in 10 100; do
    line="step $step/100  epoch $(value "\"step\":$step,\"epoch" epoch %.2f)"
    line="$line  loss $(value "\"step\":$step,\"epoch" loss %.4f)"
    has "$line"
done
has "held-out loss $(value '"step":0,' eval_loss %.2f) before, $(value '"step":100,"eval' eval_loss %.2f) after"

# Every "N.N ms" and "N.N GiB" of the table, rounded from a file's median step and memory.
files=$(grep -o 'h200[0-9a-z_.]*\.json' README.md | sort -u)
[ -n "$files" ] || fail "no file of bench/results is named"
for file in $files; do
    grep -o '"\(step_ms\|card_used_bytes\|peak_allocated_gib\)":[ ]*[0-9.]*' "bench/results/$file" || :
done | sed 's/[":]/ /g' | awk '
    $1 == "step_ms" { printf "%.1f ms\n", $2 }
    $1 == "card_used_bytes" { printf "%.1f GiB\n", $2 / 1073741824 }
    $1 == "peak_allocated_gib" { printf "%.1f GiB\n", $2 }' >"$scratch/measured"
sed -n '/^| step time/,/^$/p' README.md | grep -o '[0-9]*\.[0-9] \(ms\|GiB\)' >"$scratch/claimed" || :
[ "$(wc -l <"$scratch/claimed")" -ge 12 ] || fail "the table of step times has $(wc -l <"$scratch/claimed") figures"
while read -r figure; do
    grep -qxF "$figure" "$scratch/measured" || fail "$figure is in none of:" $files
done <"$scratch/claimed"
exit $failed
