#!/bin/sh
# expect_failure.sh PATTERN COMMAND...: passes when COMMAND fails, says a line that matches PATTERN, and no
# rank went on as if nothing had happened.
pattern=$1
shift
output=$("$@" 2>&1)
code=$?
printf '%s\n(exit code %s)\n' "$output" "$code"
[ "$code" -ne 0 ] || { echo "expected a failure"; exit 1; }
case $output in *"did not notice"*) exit 1 ;; esac
printf '%s' "$output" | grep -qE "$pattern" || { echo "expected a line with: $pattern"; exit 1; }
