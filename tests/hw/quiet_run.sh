#!/usr/bin/env bash
# How right the model is on this machine's own memory: calibration and lockstep validation of the cpu device, eight minutes.
#
#   tests/hw/quiet_run.sh [RESULTS]        from a checkout, kvtier on the PATH, and nothing else running
#
# Needs 6 GiB of memory and 1 GiB on disk. The last lines are the verdict; it says so where the machine was too busy to tell.
set -eu
out=${1:-quiet-run}
mkdir -p "$out"
kvtier calibrate --device cpu --storage "$out/slots" --out "$out/profile.yaml" | tee "$out/calibrate.txt"
kvtier validate mooncake_arxiv_first1000 --limit 150 --device cpu --profile "$out/profile.yaml" --repeats 5 \
    --gpu-tokens 131072 --host-tokens 262144 --set tokens_per_block=8 --set dtype=fp8 \
    --set parallel.tensor_parallel_size=8 --out "$out/validation" | tee "$out/validate.txt"
rmdir "$out/slots"
