#!/usr/bin/env bash
# Everything that needs a GPU, in one go and one folder: probe, calibration, lockstep validation, integrity. Under 5 minutes.
#
#   tests/gpu/run.sh [RESULTS [STORAGE [DEVICE]]]        from a checkout; needs python with torch for CUDA
#
# Missing packages of kvtier are installed from wheels/ beside the checkout if there, else from the index pip is set to.
# Each part has a time limit, all of them together 290 s; a part that fails does not stop the next one; the exit code says
# whether all passed. `tests/gpu/run.sh results slots cpu` is the same without a GPU.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$here/gpu-results}
storage=${2:-$out/slots}
device=${3:-cuda:0}
mkdir -p "$out" "$storage"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" KVIKIO_COMPAT_MODE="${KVIKIO_COMPAT_MODE:-AUTO}"
failed=0
all=290

part() { # name, seconds, command...
    local name=$1 limit=$2 begun=$SECONDS code
    shift 2
    [ $((all - SECONDS)) -lt "$limit" ] && limit=$((all - SECONDS))
    [ "$limit" -lt 5 ] && { echo "$name: no time left" | tee -a "$out/summary.txt"; failed=1; return; }
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.txt" 2>"$out/$name.err"
    code=$?
    printf '%-12s exit %3d  %3d s  %s\n' "$name" "$code" $((SECONDS - begun)) "$out/$name.txt" | tee -a "$out/summary.txt"
    [ "$code" -eq 0 ] || { failed=1; tail -n 3 "$out/$name.err"; }
}

kvtier() { python -c 'from experiments.cli import main; main()' "$@"; }
export -f kvtier

: >"$out/summary.txt"
git -C "$here" rev-parse HEAD >>"$out/summary.txt" 2>/dev/null
python -c 'import numba, simpy, typer, pyarrow, pandas, matplotlib, joblib, pydantic, yaml, rich' 2>/dev/null ||
    timeout 60 python -m pip install -q $([ -d "$here/wheels" ] && echo "--no-index --find-links $here/wheels") \
        numba simpy typer pyarrow pandas matplotlib joblib pydantic pyyaml rich >"$out/pip.txt" 2>&1

small="--set tokens_per_block=8 --set dtype=fp8 --set parallel.tensor_parallel_size=8 --gpu-tokens 131072 --host-tokens 262144"
large="--set tokens_per_block=32 --gpu-tokens 131072 --host-tokens 65536"
disk="--set tokens_per_block=32 --set dtype=fp8 --set parallel.tensor_parallel_size=8 --set profile=cascade \
    --gpu-tokens 131072 --host-tokens 32768 --disk-tokens 131072 --storage '$storage'"
part doctor 60 bash -c "kvtier doctor --storage '$storage' --json"
part calibrate 100 bash -c "kvtier calibrate --device $device --storage '$storage' --quick --out '$out/profile.yaml'"
# without a calibration decisions and bytes are checked all the same, and times compared with the preset's
[ -f "$out/profile.yaml" ] && profile="--profile '$out/profile.yaml'" || profile=""
trace="mooncake_arxiv_first1000 --device $device $profile"
part lockstep 90 bash -c "kvtier validate $trace --limit 60 $small --repeats 2 --out '$out/lockstep'"
part integrity 60 bash -c "kvtier validate $trace --limit 40 $small --repeats 1 --check each --mode both"
part disk 45 bash -c "kvtier validate $trace --limit 20 $disk --repeats 1 --out '$out/disk'"
part large 45 bash -c "kvtier validate $trace --limit 40 $large --repeats 2 --out '$out/large'"
python -c 'import pytest, torch' 2>/dev/null && part torch 45 python -m pytest "$here/tests/hw/test_torch.py"
rmdir "$storage" 2>/dev/null
cat "$out/summary.txt"
exit $failed
