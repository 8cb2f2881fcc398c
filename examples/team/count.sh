#!/bin/sh
# Prints how many words a file has.
wc -w < "$1" | tr -d ' '
