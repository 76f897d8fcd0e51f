#!/bin/sh
# test_launch.sh RUN PROGRAM: launch/run ends with the program's exit code, and its error is printed once
# with nothing from mpirun around it. PROGRAM is not where tessera_loopback.so is, which with several ranks is one line more.
run=$1
program=$2
failed=0

fail() {
    echo "FAILED: $1" >&2
    printf '%s\n' "$output" >&2
    failed=1
}

# expect RANKS HOW CODE ERRORS: ERRORS is how often the message of the program appears.
expect() {
    output=$(timeout 60 "$run" -n "$1" "$program" "$2" 2>&1)
    code=$?
    errors=$(printf '%s\n' "$output" | grep -c 'row 9 is bad')
    lines=$(printf '%s\n' "$output" | wc -l)
    [ "$code" -eq "$3" ] || fail "-n $1 $2: exit code $code, expected $3"
    [ "$errors" -eq "$4" ] || fail "-n $1 $2: $errors errors, expected $4"
    notes=$(printf '%s\n' "$output" | grep -c '^launch/run: no tessera_loopback.so with .*: mpirun will listen on all addresses')
    [ "$notes" -eq $(($1 > 1)) ] || fail "-n $1 $2: $notes notes about where mpirun listens"
    [ "$lines" -eq $((1 + $4 + notes)) ] || fail "-n $1 $2: $lines lines, expected the command and the error"
}

for ranks in 1 2 3; do
    expect $ranks ok 0 0
    expect $ranks agreed 65 1
    expect $ranks abort 65 1
    expect $ranks leaves 70 0
done

expect_usage() {
    output=$("$run" "$@" 2>&1)
    code=$?
    [ "$code" -eq 64 ] || fail "$*: exit code $code, expected 64"
}
expect_usage
expect_usage -n 2
expect_usage -n 0 true
expect_usage -n x true
expect_usage -x
exit $failed
