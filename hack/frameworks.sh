#!/bin/sh
# Runs tests/frameworks with the real packages, in build/frameworks-venv on top of build/benchmarks-venv and .venv.
# `hack/frameworks.sh --install` only creates that environment. build/frameworks/*.txt then have its versions, from
# which hack/images/frameworks.Dockerfile makes the image of `make test-frameworks-kind`.
set -eu
cd "$(dirname "$0")/.."
./benchmarks/venv.sh
here=build/frameworks-venv
lists=build/frameworks
stamp=$(cat build/benchmarks-venv/.stamp hack/frameworks.sh | sha256sum | cut -c1-32)
if [ "$(cat $here/.stamp 2>/dev/null || true)" != "$stamp" ]; then
    rm -rf $here $lists
    mkdir -p $lists
    # Lightning and Accelerate have the versions of requirements/benchmarks.lock.
    printf '%s\n' transformers==5.24.0 requests lightning accelerate kubernetes > $lists/resolved.txt
    printf '%s\n' kubeflow==0.5.0 kubeflow-trainer-api==2.3.0 kubeflow-katib-api==0.19.0 \
        deepspeed==0.19.8 hjson==3.1.0 py-cpuinfo==9.0.0 ninja==1.13.2 msgpack==1.2.4 einops==0.8.2 > $lists/alone.txt
    .venv/bin/python -m venv $here
    site=$($here/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for below in .venv build/benchmarks-venv; do
        $below/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))'
    done > "$site/below.pth"
    $here/bin/pip install --quiet --disable-pip-version-check -r $lists/resolved.txt
    $here/bin/pip install --quiet --disable-pip-version-check --no-deps -r $lists/alone.txt
    # Our own distributions and torch are no part of the image's layer.
    $here/bin/pip freeze --disable-pip-version-check --all --exclude-editable \
        | grep -E '^[A-Za-z0-9._-]+==' > $lists/constraints.txt
    # tests/frameworks/on_wandb.py needs it, and the image does not.
    $here/bin/pip install --quiet --disable-pip-version-check wandb==0.31.0
    echo "$stamp" > $here/.stamp
fi
if [ "${1:-}" = --install ]; then exit; fi
exec $here/bin/python -m pytest -q tests/frameworks/on_frameworks.py "$@"
