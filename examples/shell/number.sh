#!/bin/sh
# Renames files to NNN-NAME in the order of the arguments.
set -eu
[ $# -gt 0 ] || { echo "usage: number.sh FILE..." >&2; exit 2; }
n=0
for f in "$@"; do
  n=$((n + 1))
  dir=$(dirname -- "$f")
  mv -- "$f" "$dir/$(printf '%03d' "$n")-$(basename -- "$f")"
done
