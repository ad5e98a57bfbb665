#!/usr/bin/env bash
# Build Horovod for the torch of an environment, once, into a wheel that later set-ups reuse.
#
# Horovod 0.28.1 is the last release. Its CMake files ask for C++14, which the headers of current
# torch no longer compile under, so the source distribution is built with C++20 instead; nothing
# else in it is changed. Gloo carries the collectives on the CPU; on a machine with NCCL and MPI,
# set HOROVOD_GPU_OPERATIONS=NCCL (and unset HOROVOD_WITHOUT_MPI) before calling this. Versions of
# the packages that it needs are pip's choice; PIP_CONSTRAINT=FILE holds it to those of a file.
#
# usage: build_horovod.sh PYTHON            build and install; on failure the build's own last words
#        build_horovod.sh --check PYTHON    one line for each thing that a build needs and that is not there
set -euo pipefail

usage="usage: build_horovod.sh [--check] PYTHON"
check=
if [ "${1:-}" = --check ]; then
    check=1
    shift
fi
python=$(realpath -s "${1:?$usage}")
version=0.28.1
needs="setuptools wheel cffi pyyaml psutil packaging cloudpickle"

missing() {
    command -v cmake >/dev/null || echo "cmake (apt-get install cmake, module load cmake or pip install cmake)"
    command -v make >/dev/null || echo "make (apt-get install make)"
    command -v "${CXX:-c++}" >/dev/null ||
        echo "${CXX:-c++}, a C++20 compiler (apt-get install g++, or module load gcc and export CXX=g++)"
    local include
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$include/Python.h" ] || echo "$include/Python.h (apt-get install python3-dev)"
    "$python" -m pip --version >/dev/null 2>&1 || echo "pip ($python -m ensurepip)"
    "$python" -c 'import importlib.util as u; raise SystemExit(u.find_spec("torch") is None)' ||
        echo "torch (pip install 'largebatch[train]')"
}

if [ -n "$check" ]; then
    missing
    exit 0
fi

tag=$("$python" - <<'PY'
import sys, sysconfig, torch
print(f"py{sys.version_info.major}{sys.version_info.minor}-torch{torch.__version__}-{sysconfig.get_platform()}")
PY
) || { missing >&2; exit 1; }
cache=${LARGEBATCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/largebatch}/horovod-$version-$tag
mkdir -p "$cache"

if ! ls "$cache"/horovod-*.whl >/dev/null 2>&1; then
    absent=$(missing)
    if [ -n "$absent" ]; then
        printf 'horovod: cannot be built here; install these first:\n%s\n' "$absent" >&2
        exit 1
    fi
    echo "horovod: building $version for $tag (about three minutes, once; kept in $cache)"
    # shellcheck disable=SC2086  # a list of words
    "$python" -m pip install --quiet $needs
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    "$python" -m pip download --quiet --no-deps --no-binary horovod --no-build-isolation \
        --dest "$build" "horovod==$version"
    tar -xzf "$build/horovod-$version.tar.gz" -C "$build"
    sed -i.bak 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 20)/' \
        "$build/horovod-$version/CMakeLists.txt" "$build/horovod-$version/horovod/torch/CMakeLists.txt"
    if ! (cd "$build/horovod-$version" &&
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=${HOROVOD_WITH_GLOO:-1} HOROVOD_WITHOUT_MPI=${HOROVOD_WITHOUT_MPI-1} \
        HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        "$python" -m pip wheel --no-deps --no-build-isolation --wheel-dir "$build/wheel" . \
        >"$build/log" 2>&1); then
        tail -n 20 "$build/log" >&2
        exit 1
    fi
    mv "$build"/wheel/horovod-*.whl "$cache/"
fi
"$python" -m pip install --quiet cffi pyyaml psutil packaging cloudpickle
"$python" -m pip install --quiet --no-deps --force-reinstall "$cache"/horovod-*.whl
"$python" -c 'import horovod.torch'
