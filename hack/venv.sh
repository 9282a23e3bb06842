#!/bin/sh
# Makes .venv from the lock file (hashes checked), with our distributions linked into it.
# As root on a Debian machine, the script installs missing system packages; elsewhere it names them.
set -eu
cd "$(dirname "$0")/.."

# One run at a time: of two `make` at once, each would remove what the other has made.
if command -v flock >/dev/null 2>&1 && [ -z "${DTJ_VENV_LOCKED:-}" ]; then
    DTJ_VENV_LOCKED=1 exec flock --timeout 1800 .venv.lock "$0"
fi

stamp=$(cat requirements/install.lock requirements/dev.lock contract/pyproject.toml core/pyproject.toml agent/pyproject.toml operator/pyproject.toml trainer-image/pyproject.toml client/pyproject.toml hack/venv.sh | sha256sum | cut -c1-32)
[ "$(cat .venv/.stamp 2>/dev/null || true)" = "$stamp" ] && exit 0

usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] < (3, 11))' >/dev/null 2>&1; }
find_python() { for p in "${PYTHON:-}" python3 python3.11 python3.12 python3.13 /usr/bin/python3; do
    [ -n "$p" ] && command -v "$p" >/dev/null 2>&1 && usable "$p" && { echo "$p"; return; }; done; }

python=$(find_python)
if [ -z "$python" ] && command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv >/dev/null
    python=$(find_python)
fi
if [ -z "$python" ]; then
    echo "no Python 3.11 or later with venv was found: install one (Debian: apt-get install python3 python3-venv) or set PYTHON=/path/to/python3" >&2
    exit 1
fi

echo "making .venv with $("$python" --version) (torch is 2.5 GB: minutes the first time)"
rm -rf .venv
"$python" -m venv .venv
pip() { .venv/bin/pip --disable-pip-version-check "$@"; }
pip install --quiet --require-hashes -r requirements/install.lock
# uv links files from its cache where pip unpacks 2.5 GB again: 2 s instead of 150 s.
# uv doesn't read pip's settings, so they are handed over.
setting() { pip config get "global.$1" 2>/dev/null || pip config get ":env:.$1" 2>/dev/null || true; }
index=$(setting index-url) cert=$(setting cert)
[ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
[ -z "$cert" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$cert}"
uv() { .venv/bin/uv pip install --quiet --python .venv/bin/python "$@"; }
uv --require-hashes -r requirements/dev.lock
uv --no-deps --no-build-isolation -e contract -e core -e agent -e operator -e trainer-image -e client
# uv compiles nothing, and where PYTHONDONTWRITEBYTECODE is set every process would compile torch again (3 s each).
# A few files of other packages are templates or for another Python: they can't be compiled, and nothing imports them.
.venv/bin/python -m compileall -qq -j 0 .venv/lib || true
[ -d "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch/__pycache__" ] ||
    { echo "the libraries in .venv could not be compiled: is the disk full?" >&2; exit 1; }
echo "$stamp" > .venv/.stamp
