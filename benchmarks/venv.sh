#!/bin/sh
# Creates build/benchmarks-venv: .venv plus the libraries that the benchmarks compare with.
# The environment refers to .venv instead of copying 5 GB; .venv itself does not change.
set -eu
cd "$(dirname "$0")/.."
here=build/benchmarks-venv
stamp=$(cat .venv/.stamp requirements/benchmarks.lock benchmarks/venv.sh | sha256sum | cut -c1-32)
[ "$(cat $here/.stamp 2>/dev/null || true)" = "$stamp" ] && exit 0
rm -rf $here
.venv/bin/python -m venv $here
site=$($here/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# addsitedir, unlike a plain path, reads .venv's .pth files, which link our distributions.
echo "import site; site.addsitedir('$below')" > "$site/below.pth"
$here/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/benchmarks.lock
echo "$stamp" > $here/.stamp
