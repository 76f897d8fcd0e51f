#!/bin/sh
# expect_exit.sh CODE COMMAND...: succeeds if the command ends with that exit code; 77 (a skip) is passed on.
expected=$1
shift
"$@"
code=$?
[ "$code" -eq 77 ] && exit 77
[ "$code" -eq "$expected" ] && exit 0
echo "exit code $code, expected $expected: $*" >&2
exit 1
