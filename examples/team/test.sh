#!/bin/sh
# Checks count.sh. Prints one line for each check.
failed=0
sample=$(mktemp)
trap 'rm -f "$sample"' EXIT
printf 'one two three\nfour five\n' > "$sample"

check() {
    what=$1 expected=$2
    shift 2
    found=$(sh count.sh "$@" "$sample" 2>/dev/null)
    if [ "$found" = "$expected" ]; then
        echo "ok: $what"
    else
        echo "FAILED: $what: expected $expected, found $found"
        failed=$((failed + 1))
    fi
}

check words 5
check lines 2 -l
echo "$failed failed"
