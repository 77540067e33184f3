# syntax=docker/dockerfile:1
# Every service but engine and trainer: no torch. Build from the repository root.
ARG BASE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
RUN python -m venv /opt/ratchet
WORKDIR /src
COPY LICENSE README.md pyproject.toml constraints.txt ./
COPY contracts contracts
COPY deploy deploy
COPY services services
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/ratchet/bin/python -m pip install -c constraints.txt '.[prompts,analyst]'

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="ratchet" \
      org.opencontainers.image.description="Ratchet's services without torch" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
RUN groupadd --gid 10001 ratchet \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin ratchet \
    && install -d -o 10001 -g 10001 -m 0750 /data
COPY --from=build /opt/ratchet /opt/ratchet
ENV PATH=/opt/ratchet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    RATCHET_DATA_DIR=/data RATCHET_HTTP_HOST=0.0.0.0 RATCHET_HEALTH_PORT=9100
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8080 8081 8083 8084 9100
CMD ["ratchet", "--help"]
