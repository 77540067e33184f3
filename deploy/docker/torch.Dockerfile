# syntax=docker/dockerfile:1
# Engine and trainer. TORCH_INDEX names the index of another torch build; with CUDA=yes it must be one with CUDA, whose
# libraries come with it: the machine needs NVIDIA's driver and container toolkit only. Build from the repository root.
ARG BASE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
FROM ${BASE} AS build
ARG TORCH_INDEX=default
ARG CUDA=no
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
RUN python -m venv /opt/ratchet
WORKDIR /src
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    torch="$(sed -n 's/^torch==/torch==/p' constraints.txt)" \
    && if [ "$TORCH_INDEX" = default ]; \
       then /opt/ratchet/bin/python -m pip install -c constraints.txt "$torch"; \
       else /opt/ratchet/bin/python -m pip install --no-deps --index-url "$TORCH_INDEX" "$torch"; fi
RUN [ "$CUDA" = no ] || /opt/ratchet/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is None)'
COPY LICENSE README.md pyproject.toml ./
COPY contracts contracts
COPY deploy deploy
COPY services services
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/ratchet/bin/python -m pip install -c constraints.txt '.[engine,trainer]' \
    && if [ "$CUDA" = no ]; then /opt/ratchet/bin/python -m pip uninstall -y triton; fi

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="ratchet-torch" \
      org.opencontainers.image.description="Ratchet's engine and trainer" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
RUN groupadd --gid 10001 ratchet \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin ratchet \
    && install -d -o 10001 -g 10001 -m 0750 /data
COPY --from=build /opt/ratchet /opt/ratchet
# One thread that waits passively: on shared cores two threads that spin are many times slower.
ENV PATH=/opt/ratchet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HOME=/data/huggingface \
    RATCHET_DATA_DIR=/data RATCHET_HTTP_HOST=0.0.0.0 RATCHET_HEALTH_PORT=9100
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8082 9100
CMD ["python", "-m", "ratchet.local.engine_local"]
