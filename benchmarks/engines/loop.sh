#!/bin/bash
# loop.sh {wait|kill} COUNT LINE: runs LINE once for each RANK below COUNT, and all again when one of them has failed.
# `wait` waits until all have ended, as pods do that restart by themselves; `kill` kills the others at the first failure.
how=$1 count=$2 line=$3
until
    pids=() failed=0
    for ((rank = 0; rank < count; rank++)); do
        RANK=$rank bash -c "$line" &
        pids+=($!)
    done
    for _ in "${pids[@]}"; do
        wait -n || { failed=1; [ "$how" = wait ] || kill -9 "${pids[@]}"; }
    done
    [ $failed = 0 ]
do :; done
