#!/bin/sh
# Builds a wheel of Horovod against the torch of a Python: horovod.sh PYTHON LOCKS WHEELS. Puts the wheels that it needs
# and torch's environment lacks beside it.
#
# Horovod has no wheels, and its source asks for C++14, which the headers of torch 2.13 reject: C++17 is put in its place.
# Gloo only, without MPI and NCCL. Needs g++, cmake, make and the headers of Python; installs the build back end into that Python.
set -eu
python=$1 locks=$2 wheels=$3
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
pip() { "$python" -m pip "$@" --no-input --disable-pip-version-check --quiet; }
pip install --no-deps --require-hashes -r "$locks/horovod-build.lock"
pip download --no-deps --require-hashes --no-binary horovod --no-build-isolation --dest "$source" -r "$locks/horovod.lock"
mkdir -p "$wheels"
mv "$source"/*.whl "$wheels"
tar -xzf "$source"/horovod-*.tar.gz -C "$source" --strip-components=1
sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_PYTORCH HOROVOD_WITH_GLOO HOROVOD_WITHOUT_MPI HOROVOD_WITHOUT_TENSORFLOW HOROVOD_WITHOUT_MXNET
pip wheel --no-deps --no-build-isolation --wheel-dir "$wheels" "$source"
