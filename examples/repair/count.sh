#!/bin/sh
# Prints the number of words in a file.
wc -l < "$1" | tr -d ' '
