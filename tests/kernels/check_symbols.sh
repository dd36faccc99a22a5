#!/bin/sh
# check_symbols.sh NAMESPACE OBJECT...: no object compiled for one instruction set may define a symbol
# outside its own namespace. The linker keeps one copy of an inline function, whichever it meets first,
# and a copy made for AVX-512 must not end up serving everyone.
ns=$1
shift
[ $# -gt 0 ] || { echo "no objects given"; exit 1; }
for object in "$@"; do
  defined=$(nm --defined-only --extern-only "$object" | awk '{print $3}') || exit 1
  [ -n "$defined" ] || { echo "$object defines nothing"; exit 1; }
  bad=$(echo "$defined" | grep -v "$ns" | grep -v '^DW\.ref\.')
  [ -z "$bad" ] || { echo "$object defines outside $ns:"; echo "$bad"; exit 1; }
done
