#!/bin/sh
# Compiles the lock files from the pyproject.toml files and requirements/dev.in.
# Needs uv (pip install uv). The locks name no index, because the machine's pip settings decide it.
set -eu
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
compile() { uv pip compile --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet "$@"; }
# The sibling distributions are installed from the tree, so they are not in a lock.
deps() { python3 - "$@" <<'PY'
import sys, tomllib
path, *extras = sys.argv[1:]
project = tomllib.load(open(path, "rb"))["project"]
wanted = project["dependencies"] + [d for e in extras for d in project["optional-dependencies"][e]]
print("\n".join(d for d in wanted if not d.startswith("dtj")))
PY
}
# The entries of the second lock whose packages the first one lacks.
without() { python3 - "$@" <<'PY'
import re, sys
base, whole = (re.split(r"^(?=\S+==)", open(path).read(), flags=re.M)[1:] for path in sys.argv[1:])
have = {entry.split("==")[0] for entry in base}
sys.stdout.writelines(entry for entry in whole if entry.split("==")[0] not in have)
PY
}
{ deps core/pyproject.toml; deps operator/pyproject.toml; } > "$tmp/operator.in"
deps trainer-image/pyproject.toml torch telemetry > "$tmp/trainer.in"
# The trainer image's early layer: torch and its dependencies, so that no other change downloads them again.
grep -E '^(torch|numpy)[=<>]' "$tmp/trainer.in" > "$tmp/torch.in"
{ deps core/pyproject.toml; deps client/pyproject.toml tune; } > "$tmp/client.in"
echo "uv==0.13.9" | compile -o requirements/install.lock -
compile -o requirements/dev.lock "$tmp/operator.in" "$tmp/trainer.in" "$tmp/client.in" requirements/dev.in
# The images get the versions that the tests ran with.
compile -c requirements/dev.lock -o requirements/operator.lock "$tmp/operator.in"
compile -c requirements/dev.lock -o requirements/torch.lock "$tmp/torch.in"
compile -c requirements/dev.lock -o requirements/trainer.lock "$tmp/trainer.in"
grep '^mlflow==' requirements/dev.lock | cut -d' ' -f1 > "$tmp/mlflow.in"
compile -c requirements/dev.lock -o requirements/mlflow.lock "$tmp/mlflow.in"
compile -c requirements/dev.lock -o "$tmp/benchmarks.lock" requirements/benchmarks.in
# benchmarks/venv.sh installs this lock on top of .venv.
without requirements/dev.lock "$tmp/benchmarks.lock" > requirements/benchmarks.lock
compile -o requirements/composer.lock requirements/composer.in
# The images of the engines: JAX and TensorFlow stand alone, DeepSpeed, Horovod and Ray come on top of the trainer's libraries.
engines=requirements/engines
for name in jax tensorflow horovod-build; do
    compile -o $engines/$name.lock $engines/$name.in
done
for name in deepspeed horovod ray; do
    compile -c requirements/trainer.lock -o "$tmp/$name.lock" $engines/$name.in
    without requirements/trainer.lock "$tmp/$name.lock" > $engines/$name.lock
done
sed -i "s#$tmp/##g" requirements/*.lock $engines/*.lock
