#!/bin/sh
# Runs tests/engines with the real packages: one environment for each engine in build/engines-venv, on top of .venv.
# `hack/engines.sh jax -k orbax` runs a part of one engine's tests.
set -eu
cd "$(dirname "$0")/.."
packages() {
    case $1 in
        jax) echo jax==0.10.2 orbax-checkpoint==0.12.8 ;;
        tensorflow) echo tensorflow-cpu==2.21.0 ;;
        *) echo "hack/engines.sh: no engine $1: write jax or tensorflow" >&2; exit 2 ;;
    esac
}
case ${1:-} in
    "" | -*) engines="jax tensorflow" ;;
    *) engines=$1; shift ;;
esac
for engine in $engines; do
    wanted=$(packages "$engine")
    here=build/engines-venv/$engine
    if [ "$(cat "$here/.stamp" 2>/dev/null || true)" != "$wanted" ]; then
        rm -rf "$here"
        .venv/bin/python -m venv "$here"
        # shellcheck disable=SC2086 # several packages
        "$here/bin/pip" install --quiet --disable-pip-version-check $wanted
        site=$("$here/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        .venv/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
            > "$site/below.pth"
        echo "$wanted" > "$here/.stamp"
    fi
    "$here/bin/python" -m pytest -q tests/engines/on_engines.py -k "$engine" "$@"
done
