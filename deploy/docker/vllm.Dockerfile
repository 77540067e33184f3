# syntax=docker/dockerfile:1
# vLLM with Ratchet's plugin, for machines with CUDA: it finds policies in the object store by their names. vLLM pins
# its own dependencies, torch's CUDA build among them, so constraints.txt does not count here. Build from the repository
# root.
ARG BASE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
FROM ${BASE} AS build
ARG VLLM=0.32.0
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
RUN python -m venv /opt/ratchet
WORKDIR /src
RUN --mount=type=cache,target=/root/.cache/pip /opt/ratchet/bin/python -m pip install "vllm==${VLLM}"
COPY LICENSE README.md pyproject.toml ./
COPY contracts contracts
COPY deploy deploy
COPY services services
RUN --mount=type=cache,target=/root/.cache/pip /opt/ratchet/bin/python -m pip install "vllm==${VLLM}" '.[vllm]'

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="ratchet-vllm" \
      org.opencontainers.image.description="vLLM with Ratchet's plugin" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# Triton compiles its kernels with a C compiler when the engine starts.
RUN apt-get update && apt-get install --no-install-recommends -y gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 ratchet \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin ratchet \
    && install -d -o 10001 -g 10001 -m 0750 /data
COPY --from=build /opt/ratchet /opt/ratchet
ENV PATH=/opt/ratchet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/data HF_HOME=/data/huggingface VLLM_CACHE_ROOT=/data/vllm TRITON_CACHE_DIR=/data/triton \
    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_NO_USAGE_STATS=1 RATCHET_DATA_DIR=/data RATCHET_VLLM_CACHE=/data/adapters
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8000
CMD ["vllm", "serve", "--help"]
