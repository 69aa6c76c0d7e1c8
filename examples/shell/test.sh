#!/bin/sh
# Tests of number.sh. Ends with the number of failures.
set -u
[ "$PWD" = /workspace ] || { echo "test.sh deletes everything here: run it with caisson" >&2; exit 2; }
failures=0
dir=$(mktemp -d)

check() { # check WHAT COMMAND...
  what=$1
  shift
  if "$@"; then
    echo "ok   $what"
  else
    echo "FAIL $what"
    failures=$((failures + 1))
  fi
}

touch "$dir/b" "$dir/a" "$dir/with space"
sh number.sh "$dir/b" "$dir/a" "$dir/with space"
check "keeps the order" test -e "$dir/001-b" -a -e "$dir/002-a"
check "keeps blanks" test -e "$dir/003-with space"
check "needs an argument" sh -c '! sh number.sh 2>/dev/null'
check "fails on a missing file" sh -c '! sh number.sh "$1/none" 2>/dev/null' - "$dir"

# What a wrong variable in a script does: here it costs nothing.
empty=
rm -rf -- ".$empty"/*
check "the workspace is gone" test ! -e test.sh

exit "$failures"
