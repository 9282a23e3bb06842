#!/bin/sh
# Runs the tests of MosaicML Composer, with the older torch that it requires, in build/composer-venv on top of .venv.
# `hack/composer.sh --install` only creates that environment (torch is 2.5 GB: minutes).
set -eu
cd "$(dirname "$0")/.."
here=build/composer-venv
stamp=$(cat .venv/.stamp requirements/composer.lock hack/composer.sh | sha256sum | cut -c1-32)
if [ "$(cat $here/.stamp 2>/dev/null || true)" != "$stamp" ]; then
    rm -rf $here
    .venv/bin/python -m venv $here
    # The lock has everything that Composer needs, so --ignore-installed leaves nothing of .venv to it.
    $here/bin/pip install --quiet --disable-pip-version-check --no-deps --ignore-installed --require-hashes \
        -r requirements/composer.lock
    site=$($here/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # This environment's packages come first. addsitedir, unlike a plain path, reads .venv's .pth files of our distributions.
    .venv/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
        > "$site/below.pth"
    echo "$stamp" > $here/.stamp
fi
if [ "${1:-}" = --install ]; then exit; fi
exec $here/bin/python -m pytest -q -k composer tests/frameworks/on_composer.py tests/frameworks/on_launchers.py \
    tests/frameworks/on_kept_launchers.py "$@"
