#!/bin/sh
# Runs tests/frameworks with the real packages, in build/frameworks-venv on top of build/benchmarks-venv and .venv.
set -eu
cd "$(dirname "$0")/.."
./benchmarks/venv.sh
here=build/frameworks-venv
stamp=$(cat build/benchmarks-venv/.stamp hack/frameworks.sh | sha256sum | cut -c1-32)
if [ "$(cat $here/.stamp 2>/dev/null || true)" != "$stamp" ]; then
    rm -rf $here
    .venv/bin/python -m venv $here
    site=$($here/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for below in .venv build/benchmarks-venv; do
        $below/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))'
    done > "$site/below.pth"
    $here/bin/pip install --quiet --disable-pip-version-check transformers==5.24.0 requests
    $here/bin/pip install --quiet --disable-pip-version-check --no-deps kubeflow==0.5.0 kubeflow-trainer-api==2.3.0 \
        kubeflow-katib-api==0.19.0 deepspeed==0.19.8 hjson==3.1.0 py-cpuinfo==9.0.0 ninja==1.13.2 msgpack==1.2.4 \
        einops==0.8.2
    echo "$stamp" > $here/.stamp
fi
exec $here/bin/python -m pytest -q tests/frameworks/on_frameworks.py "$@"
