#!/bin/sh
# Runs tests/engines with the real packages: one environment for each engine in build/engines-venv, on top of .venv.
# `hack/engines.sh jax -k orbax` runs a part of one engine's tests. `hack/engines.sh --install [NAME]` only creates them.
set -eu
cd "$(dirname "$0")/.."
# The packages are those of the engines' images.
packages() {
    cat "requirements/engines/$1.in" 2>/dev/null \
        || { echo "hack/engines.sh: no engine $1: write horovod, jax, ray or tensorflow" >&2; exit 2; }
}
install=
if [ "${1:-}" = --install ]; then install=yes; shift; fi
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
            sh trainer-image/horovod.sh "$here/bin/python" requirements/engines "$here/wheels"
            "$here/bin/pip" install --quiet --disable-pip-version-check --no-deps "$here"/wheels/*.whl
            rm -r "$here/wheels"
        else
            # shellcheck disable=SC2086 # several packages
            "$here/bin/pip" install --quiet --disable-pip-version-check $wanted
        fi
        echo "$wanted" > "$here/.stamp"
    fi
    [ -z "$install" ] || continue
    "$here/bin/python" -m pytest -q tests/engines/on_engines.py tests/engines/on_readme.py -k "$engine" "$@"
done
