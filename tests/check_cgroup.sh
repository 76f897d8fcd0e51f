#!/bin/sh
# check_cgroup.sh PROGRAM: in a control group of its own (version 1 or 2, whichever this machine has) the program plans
# with what that leaves, refuses what does not fit instead of being killed, and uses the processors that its
# quota pays for. Needs root and a hierarchy that can be written to; without, it is skipped (77).
set -eu
program=$1
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
groups=
made=0
cleanup() {
    for group in $groups; do rmdir "$group" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap cleanup EXIT

# make CONTROLLER FILE VALUE...: a group below the own one, with a limit; its directory in $group. Fails where that cannot be.
make() {
    path=$(sed -n "s/^[0-9]*:\([^:]*,\)\{0,1\}$1\(,[^:]*\)\{0,1\}:\(.*\)/\3/p" /proc/self/cgroup)
    version=1
    [ -n "$path" ] || { path=$(sed -n 's/^0:://p' /proc/self/cgroup) version=2; }
    case $version in
    1) mount=$(awk -v c="$1" '$(NF-2) == "cgroup" && ("," $NF ",") ~ ("," c ",") { print $5; exit }' /proc/self/mountinfo) ;;
    2) mount=$(awk '$(NF-2) == "cgroup2" { print $5; exit }' /proc/self/mountinfo) ;;
    esac
    made=$((made + 1))
    group=$mount$path/tessera-$$-$made
    mkdir "$group" 2>/dev/null || return 1
    groups="$groups $group"
    shift
    while [ $# -gt 0 ]; do
        case $version in 1) file=$1 ;; 2) file=$2 ;; esac
        [ -z "$file" ] || sh -c "echo '$3' >'$group/$file'" 2>/dev/null || return 1
        shift 3
    done
}
# inside COMMAND...: in the group made last.
inside() {
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}
skip() {
    echo "no control group with a limit can be made here: $1"
    exit 77
}

cd "$root"
job="examples/quickstart.yaml backend=cpu dataset=examples/data/gsm8k_eval.jsonl eval_dataset=null max_steps=1"
bytes=$((200 * 1024 * 1024))
make memory memory.limit_in_bytes memory.max $bytes || skip memory
inside true 2>/dev/null || skip memory
for ranks in 1 2; do
    # shellcheck disable=SC2086
    budget=$(inside "$program" plan $job --ranks $ranks --json 2>"$scratch/log" |
        sed -n 's/.*"memory_budget": *\([0-9]*\).*/\1/p')
    if [ "$budget" -gt $((bytes * 4 / 5 / ranks)) ] || [ "$budget" -lt $((bytes / 4 / ranks)) ]; then
        echo "FAILED: $ranks ranks in $bytes bytes plan with $budget"
        exit 1
    fi
done
code=0
# shellcheck disable=SC2086
inside "$program" train $job lora_r=1024 output_dir="$scratch/out" >"$scratch/log" 2>&1 || code=$?
[ $code -eq 78 ] || { cat "$scratch/log"; echo "FAILED: exit code $code in a group that is too small"; exit 1; }
grep -q 'memory_budget allows' "$scratch/log" || { cat "$scratch/log"; exit 1; }

# Ranks in groups of their own do not share what each allows.
first=$group
make memory memory.limit_in_bytes memory.max $bytes || skip memory
# shellcheck disable=SC2086,SC2016
launch/run -n 2 sh -c 'case $OMPI_COMM_WORLD_RANK in 0) group=$0 ;; *) group=$1 ;; esac
    echo $$ >"$group/cgroup.procs" && shift && exec "$@"' "$first" "$group" \
    "$program" train $job output_dir="$scratch/two" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
budget=$(sed -n 's/.*"memory_budget": *\([0-9]*\).*/\1/p' "$scratch/two/plan.json")
[ "$budget" -gt $((bytes * 2 / 5)) ] || { echo "FAILED: ranks in groups of $bytes bytes each plan with $budget"; exit 1; }

make cpu cpu.cfs_period_us '' 100000 cpu.cfs_quota_us cpu.max 100000 || skip cpu
cores=$(inside "$program" env --json | sed -n 's/.*"cores_usable": *\([0-9]*\).*/\1/p')
[ "$cores" -eq 1 ] || { echo "FAILED: a quota of one processor gives $cores cores"; exit 1; }
echo "control groups of memory and of processors are kept to"
