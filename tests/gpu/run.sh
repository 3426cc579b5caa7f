#!/usr/bin/env bash
# Everything that needs a GPU, in one go and one folder: probe, calibration, lockstep validation, integrity. Under 5 minutes.
#
#   tests/gpu/run.sh [RESULTS [STORAGE [DEVICE]]]        from a checkout; needs python with torch for CUDA
#
# Missing packages of kvtier are installed from wheels/ beside the checkout if there, else from the index pip is set to.
# Each part has a time limit, and a part that fails does not stop the next one; the exit code says whether all passed.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$here/gpu-results}
storage=${2:-$out/slots}
device=${3:-cuda:0}
mkdir -p "$out" "$storage"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" KVIKIO_COMPAT_MODE="${KVIKIO_COMPAT_MODE:-AUTO}"
failed=0

part() { # name, seconds, command...
    local name=$1 limit=$2 begun=$SECONDS code
    shift 2
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
    python -m pip install -q $([ -d "$here/wheels" ] && echo "--no-index --find-links $here/wheels") \
        numba simpy typer pyarrow pandas matplotlib joblib pydantic pyyaml rich >"$out/pip.txt" 2>&1

small="--set tokens_per_block=8 --set dtype=fp8 --set parallel.tensor_parallel_size=8 --gpu-tokens 131072 --host-tokens 262144"
large="--set tokens_per_block=32 --gpu-tokens 131072 --host-tokens 65536"
part doctor 60 bash -c "kvtier doctor --storage '$storage' --json"
part calibrate 120 bash -c "kvtier calibrate --device $device --storage '$storage' --quick --out '$out/profile.yaml'"
part lockstep 60 bash -c "kvtier validate mooncake_arxiv_first1000 --limit 60 --device $device --profile '$out/profile.yaml' \
    $small --repeats 2 --out '$out/lockstep'"
part large 45 bash -c "kvtier validate mooncake_arxiv_first1000 --limit 40 --device $device --profile '$out/profile.yaml' \
    $large --repeats 2 --out '$out/large'"
part integrity 60 bash -c "kvtier validate mooncake_arxiv_first1000 --limit 40 --device $device --profile '$out/profile.yaml' \
    $small --repeats 1 --check each --mode both"
part disk 45 bash -c "kvtier validate mooncake_arxiv_first1000 --limit 20 --device $device --profile '$out/profile.yaml' \
    --set tokens_per_block=32 --set dtype=fp8 --set parallel.tensor_parallel_size=8 --set profile=cascade \
    --gpu-tokens 131072 --host-tokens 32768 --disk-tokens 131072 \
    --storage '$storage' --repeats 1 --out '$out/disk'"
rmdir "$storage" 2>/dev/null
cat "$out/summary.txt"
exit $failed
