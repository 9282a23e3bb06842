# MLflow's server as in ghcr.io/mlflow/mlflow, which is the package in a Python image, for tests/e2e/on_tracking.py.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}
COPY requirements/mlflow.lock /opt/mlflow/
RUN python3 -m pip install --no-cache-dir --no-input --progress-bar off --no-deps --require-hashes -r /opt/mlflow/mlflow.lock
LABEL org.opencontainers.image.title="dtj-mlflow" \
      org.opencontainers.image.description="MLflow's tracking server, for a test" \
      org.opencontainers.image.licenses="Apache-2.0"
