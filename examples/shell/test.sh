#!/bin/sh
# Tests of number.sh. Writes report.txt; the exit status is the number of failures.
set -u
failures=0
: >report.txt
dir=$(mktemp -d)

check() { # check WHAT COMMAND...
  what=$1
  shift
  if "$@"; then
    echo "ok   $what" | tee -a report.txt
  else
    echo "FAIL $what" | tee -a report.txt
    failures=$((failures + 1))
  fi
}

touch "$dir/b" "$dir/a" "$dir/with space"
sh number.sh "$dir/b" "$dir/a" "$dir/with space"
check "keeps the order" test -e "$dir/001-b" -a -e "$dir/002-a"
check "keeps blanks" test -e "$dir/003-with space"
check "needs an argument" sh -c '! sh number.sh 2>/dev/null'
check "fails on a missing file" sh -c '! sh number.sh "$1/none" 2>/dev/null' - "$dir"

rm -rf -- "$dir"

exit "$failures"
