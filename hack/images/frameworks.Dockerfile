# The image of tests/e2e/on_frameworks.py: dtj-torch, which has nothing of this project, and the frameworks as users install them.
#
# hack/frameworks.sh decides the versions. Its lists are the only inputs, so a change of our code rebuilds nothing here.
ARG BASE_IMAGE=dtj-torch
FROM ${BASE_IMAGE}
USER 0:0
# DeepSpeed compiles its communication between the processes of a node: here once, instead of in each pod.
RUN apt-get update && apt-get install -y --no-install-recommends g++ libpython3-dev && rm -rf /var/lib/apt/lists/*
COPY build/frameworks /opt/frameworks
# Of the constraints only those count whose packages are needed; torch is there already.
RUN python3 -m pip install --no-cache-dir --no-input --progress-bar off -c /opt/frameworks/constraints.txt \
      -r /opt/frameworks/resolved.txt \
 && DS_BUILD_SHM_COMM=1 python3 -m pip install --no-cache-dir --no-input --progress-bar off --no-build-isolation --no-deps \
      -r /opt/frameworks/alone.txt
USER 65532:65532
LABEL org.opencontainers.image.title="dtj-frameworks" \
      org.opencontainers.image.description="torch, Lightning, Accelerate, transformers and DeepSpeed, for a test" \
      org.opencontainers.image.licenses="Apache-2.0"
