#!/bin/sh
# Checks count.sh. Prints one line for each check.
failed=0
sample=$(mktemp)
trap 'rm -f "$sample"' EXIT
printf 'one two three\nfour five\n' > "$sample"

check() {
    expected=$1
    shift
    found=$(sh count.sh "$@" 2>/dev/null)
    if [ "$found" = "$expected" ]; then
        echo "ok: count.sh $1"
    else
        echo "FAILED: count.sh $1: expected $expected, found $found"
        failed=$((failed + 1))
    fi
}

check 5 "$sample"
check 2 -l "$sample"
echo "$failed failed"
