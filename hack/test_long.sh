#!/bin/sh
# Runs the trainer's tests with another version of torch than the lock's, in build/torch-VERSION-venv on top of .venv.
set -eu
cd "$(dirname "$0")/.."
version=${TORCH:-2.14.1}
here=build/torch-$version-venv
stamp=$(cat .venv/.stamp hack/test_long.sh | sha256sum | cut -c1-32)-$version
if [ "$(cat "$here/.stamp" 2>/dev/null || true)" != "$stamp" ]; then
    rm -rf "$here"
    .venv/bin/python -m venv "$here"
    site=$("$here/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # This environment's packages come first. addsitedir, unlike a plain path, reads .venv's .pth files of our distributions.
    echo "import site; site.addsitedir('$below')" > "$site/below.pth"
    "$here/bin/python" -m pip install --quiet --disable-pip-version-check --ignore-installed \
        ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "torch==$version"
    echo "$stamp" > "$here/.stamp"
fi
found=$("$here/bin/python" -c 'import torch; print(torch.__version__.partition("+")[0])')
[ "$found" = "$version" ] || { echo "$here has torch $found, not $version" >&2; exit 1; }
exec "$here/bin/python" -m pytest -q -n 2 --dist loadfile --durations=10 tests/unit/trainer "$@"
