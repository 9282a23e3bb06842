#!/bin/sh
# Make build/benchmarks-venv: what is in .venv, and on top of it the libraries that the benchmarks compare with.
# It refers to .venv instead of copying 5 GB, and .venv never sees it.
set -eu
cd "$(dirname "$0")/.."
here=build/benchmarks-venv
stamp=$(cat .venv/.stamp requirements/benchmarks.lock benchmarks/venv.sh | sha256sum | cut -c1-32)
[ "$(cat $here/.stamp 2>/dev/null || true)" = "$stamp" ] && exit 0
rm -rf $here
.venv/bin/python -m venv $here
site=$($here/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# addsitedir, not a plain path: .venv's own .pth files link our three distributions.
echo "import site; site.addsitedir('$below')" > "$site/below.pth"
$here/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/benchmarks.lock
echo "$stamp" > $here/.stamp
