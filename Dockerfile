# The operator's image. It also carries /dtj/agent.pyz, which an init container of every job's pods copies into the pod.
#
#   docker build -t dtj-operator .
#
# Libraries are in the first layers, our code in the last. The classic builder must work, so avoid BuildKit-only syntax.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS libraries
COPY requirements/operator.lock /tmp/operator.lock
# The Kubernetes client has a module for each of 1,500 types. The operator works with plain dicts and imports almost none,
# so they stay uncompiled, which saves 50 MB. The base image's package installer is no longer needed after this step.
RUN python3 -m venv --without-pip /opt/dtj \
 && python3 -m pip --python /opt/dtj/bin/python install --no-cache-dir --no-input --progress-bar off --no-compile \
      --no-deps --require-hashes --only-binary :all: -r /tmp/operator.lock \
 && /opt/dtj/bin/python -m compileall -q -x 'kubernetes/(aio/)?client/(api|models)/' /opt/dtj/lib \
 && rm -rf "$(python3 -c 'import pip; print(pip.__path__[0])')" /usr/bin/pip* /usr/local/bin/pip* /tmp/operator.lock \
 && echo "dtj:x:65532:65532:dtj:/tmp:/usr/sbin/nologin" >> /etc/passwd && echo "dtj:x:65532:" >> /etc/group

FROM libraries AS code
COPY hack/images/install_tree.py /src/
COPY contract /src/contract
COPY core /src/core
COPY agent /src/agent
COPY operator /src/operator
RUN mkdir /dtj && PYTHONPATH=/src/contract/src:/src/agent/src python3 -m dtj_agent.build /dtj/agent.pyz \
 && for project in contract core operator; do \
      python3 /src/install_tree.py /src/$project /dtj/lib /dtj/commands || exit 1; \
    done

FROM libraries
ENV PATH=/dtj/commands:/opt/dtj/bin:${PATH} PYTHONPATH=/dtj/lib PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["dtj-operator"]
ARG VERSION=0.1.0
ARG REVISION=""
ARG SOURCE=""
LABEL org.opencontainers.image.title="dtj-operator" \
      org.opencontainers.image.description="Kubernetes operator for DistributedTrainingJob" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
COPY --from=code /dtj /dtj
