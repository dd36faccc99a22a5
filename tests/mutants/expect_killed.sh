#!/bin/sh
# expect_killed.sh PROGRAM FILTER: passes when a test of FILTER fails in PROGRAM. A crash is no proof: it
# may come of the mutation without any test that looks.
output=$("$1" "$2" --abort 2>&1)
code=$?
printf '%s\n(exit code %s)\n' "$output" "$code"
case $output in
*"due to a fatal error condition"*) echo "the mutant crashed instead of failing a test"; exit 1 ;;
*"No test cases matched"*) echo "the filter names no test"; exit 1 ;;
esac
[ "$code" -ne 0 ] || { echo "the mutant survived"; exit 1; }
printf '%s\n' "$output" | grep -qE '^test cases: .*[1-9][0-9]* failed' ||
  { echo "no test reported a failure"; exit 1; }
