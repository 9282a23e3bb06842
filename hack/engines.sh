#!/bin/sh
# Runs tests/engines with the real packages: one environment for each engine in build/engines-venv, on top of .venv.
# `hack/engines.sh jax -k orbax` runs a part of one engine's tests.
set -eu
cd "$(dirname "$0")/.."
packages() {
    case $1 in
        jax) echo jax==0.10.2 orbax-checkpoint==0.12.8 ;;
        horovod) echo horovod==0.28.1 ;;
        ray) echo "ray[train]==2.60.0" ;;
        tensorflow) echo tensorflow-cpu==2.21.0 ;;
        *) echo "hack/engines.sh: no engine $1: write horovod, jax, ray or tensorflow" >&2; exit 2 ;;
    esac
}
# Builds Horovod's source against the torch of .venv: it has no wheels, and its release asks for C++14, which torch's
# headers reject.
build_horovod() {
    rm -rf "$1/source"
    "$1/bin/pip" install --quiet --disable-pip-version-check setuptools==80.9.0 wheel==0.45.1 cloudpickle packaging psutil pyyaml
    "$1/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
        --dest "$1/source" "$2"
    tar -xzf "$1"/source/*.tar.gz -C "$1/source" --strip-components=1
    sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' "$1/source/CMakeLists.txt" "$1/source/horovod/torch/CMakeLists.txt"
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
        HOROVOD_WITHOUT_MXNET=1 "$1/bin/pip" install --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation "$1/source"
    rm -rf "$1/source"
}
case ${1:-} in
    "" | -*) engines="jax tensorflow horovod ray" ;;
    *) engines=$1; shift ;;
esac
for engine in $engines; do
    wanted=$(packages "$engine")
    here=build/engines-venv/$engine
    if [ "$(cat "$here/.stamp" 2>/dev/null || true)" != "$wanted" ]; then
        rm -rf "$here"
        .venv/bin/python -m venv "$here"
        site=$("$here/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        .venv/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
            > "$site/below.pth"
        if [ "$engine" = horovod ]; then
            build_horovod "$here" "$wanted"
        else
            # shellcheck disable=SC2086 # several packages
            "$here/bin/pip" install --quiet --disable-pip-version-check $wanted
        fi
        echo "$wanted" > "$here/.stamp"
    fi
    "$here/bin/python" -m pytest -q tests/engines/on_engines.py -k "$engine" "$@"
done
