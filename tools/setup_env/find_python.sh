#!/bin/sh
# Prints the Python to set up with: the one given as $1, else the first of the usual names that
# is of a supported version. The upper end is numpy 1.26's.
# Usage: find_python.sh [PYTHON]
version='import sys; print("%d.%d" % sys.version_info[:2])'
found=''
for name in ${1:-python3.11 python3.12 python3.10 python3}; do
    has=$("$name" -c "$version" 2>/dev/null) || continue
    case $has in
        3.10 | 3.11 | 3.12)
            echo "$name"
            exit 0
            ;;
    esac
    found="$found $name is $has;"
done
echo "set-up failed: Python 3.10, 3.11 or 3.12 is needed${1:+ (PYTHON=$1)};${found:- none was found;}" \
    "choose one with PYTHON=/path/to/python3.11" >&2
exit 1
