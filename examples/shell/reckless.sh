#!/bin/sh
# What a script with a wrong variable does: it half does its work, deletes the directory it runs in, and fails.
[ "$PWD" = /workspace ] || { echo "reckless.sh deletes everything here: run it with caisson" >&2; exit 2; }
sh number.sh README.md
target=
rm -rf -- "${target:-.}"/*
exit 1
