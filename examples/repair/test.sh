#!/bin/sh
# Checks count.sh. The last line says how many checks failed.
failed=0
check() {
    printf '%b' "$1" > /tmp/words.$$
    found=$(sh count.sh /tmp/words.$$)
    if [ "$found" = "$2" ]; then
        echo "ok: $2 words"
    else
        echo "FAILED: expected $2 words, found $found"
        failed=$((failed + 1))
    fi
    rm -f /tmp/words.$$
}
check 'one two three\n' 3
check 'one\ntwo three\nfour\n' 4
check '' 0
echo "$failed failed"
[ "$failed" = 0 ]
