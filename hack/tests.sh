#!/bin/bash
# Runs one stage of the tests: hack/tests.sh STAGE [options of the first run] -- PYTEST-ARGUMENTS
# Up to eight tests that fail in the first run get a second look, alone on the machine. A test that fails twice fails the stage.
# A test that passes alone is printed as FLAKY and appended to build/flaky.txt. STRICT=1 allows no second look.
# docs/decisions/0011 gives the reasons.
set -uo pipefail
cd "$(dirname "$0")/.."
# Where PYTHONDONTWRITEBYTECODE is set, each operator would compile our sources again, and start in 1.1 s of CPU instead of 0.7.
.venv/bin/python -m compileall -qq */src || true
stage=$1
shift
first=()
while [ "$1" != "--" ]; do first+=("$1"); shift; done
shift
most=8
cache=$PWD/build/pytest/$stage
# A first run shares the machine with the first runs of other stages. A second look waits until those are over.
mkdir -p build
exec {machine}>build/tests.lock
share() { if command -v flock >/dev/null 2>&1; then flock "$1" "$machine"; fi; }
run() { .venv/bin/python -m pytest -q -o cache_dir="$cache" "$@" {machine}>&-; }

rm -rf "$cache"
share --shared
run "${first[@]}" "$@"
code=$?
# Exit code 1 means that tests failed. Codes 2 to 5 (interrupted, misused, nothing collected) get no second look.
if [ "$code" != 1 ] || [ -n "${STRICT:-}" ]; then exit "$code"; fi
failed=$(.venv/bin/python -c 'import json, sys; print("\n".join(json.load(open(sys.argv[1]))))' "$cache/v/cache/lastfailed") || exit 1
if [ -z "$failed" ] || [ "$(wc -l <<<"$failed")" -gt "$most" ]; then exit 1; fi

printf '\nA second look, alone on the machine, at:\n%s\n\n' "$failed"
share --exclusive
run --last-failed --last-failed-no-failures none "$@" || exit 1
sed 's/^/FLAKY (failed beside other tests, passed alone): /' <<<"$failed" | tee -a build/flaky.txt
