#!/usr/bin/env bash
# Build Horovod for the torch of this environment, once, into a wheel that later set-ups reuse.
#
# Horovod 0.28.1 is the last release. Its CMake files ask for C++14, which the headers of current
# torch no longer compile under, so the source distribution is built with C++20 instead; nothing
# else in it is changed. Gloo carries the collectives on the CPU; on a machine with NCCL and MPI,
# set HOROVOD_GPU_OPERATIONS=NCCL (and unset HOROVOD_WITHOUT_MPI) before calling this.
#
# usage: scripts/build_horovod.sh PYTHON      prints nothing but the build's own last words on failure
set -euo pipefail

python=$(realpath -s "${1:?usage: scripts/build_horovod.sh PYTHON}")
version=0.28.1
root=$(cd "$(dirname "$0")/.." && pwd)
tag=$("$python" - <<'PY'
import sys, sysconfig, torch
print(f"py{sys.version_info.major}{sys.version_info.minor}-torch{torch.__version__}-{sysconfig.get_platform()}")
PY
)
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=${HOROVOD_WITH_GLOO:-1} HOROVOD_WITHOUT_MPI=${HOROVOD_WITHOUT_MPI-1}
export HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
# a build with other flags (with NCCL, with MPI) is another wheel
usual="HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITH_PYTORCH=1 "
flags=$(env | grep '^HOROVOD_' | LC_ALL=C sort | tr '\n' ' ')
if [[ $flags != "$usual" ]]; then tag+=-$(sha256sum <<<"$flags" | cut -c1-12); fi
cache=${LARGEBATCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/largebatch}/horovod-$version-$tag
mkdir -p "$cache"

if ! ls "$cache"/horovod-*.whl >/dev/null 2>&1; then
    echo "horovod: building $version for $tag (about three minutes, once; kept in $cache)"
    "$python" -m pip install --quiet --constraint "$root/constraints.txt" \
        setuptools wheel cffi pyyaml psutil packaging cloudpickle
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    "$python" -m pip download --quiet --no-deps --no-binary horovod --no-build-isolation \
        --dest "$build" "horovod==$version"
    tar -xzf "$build/horovod-$version.tar.gz" -C "$build"
    sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 20)/' \
        "$build/horovod-$version/CMakeLists.txt" "$build/horovod-$version/horovod/torch/CMakeLists.txt"
    if ! (cd "$build/horovod-$version" &&
        "$python" -m pip wheel --no-deps --no-build-isolation --wheel-dir "$build/wheel" . \
        >"$build/log" 2>&1); then
        tail -n 20 "$build/log" >&2
        exit 1
    fi
    mv "$build"/wheel/horovod-*.whl "$cache/"
fi
"$python" -m pip install --quiet --constraint "$root/constraints.txt" cffi pyyaml psutil packaging cloudpickle
"$python" -m pip install --quiet --no-deps --force-reinstall "$cache"/horovod-*.whl
"$python" -c 'import horovod.torch'
