# Servers in the place of the vendors' images, which no registry gives to a machine without a network: the packages of the
# embedded stack, Debian's Prometheus and Alertmanager, and MLflow from the package index. Their users, folders, ports and
# entry points are those that docker-compose.yml assumes of the vendors' images; RATCHET is our own image.
ARG RATCHET
ARG BASE
FROM ${RATCHET} AS servers
ARG EMBEDDED
USER 0:0
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends -y wget prometheus prometheus-alertmanager \
    && rm -rf /var/lib/apt/lists/*
RUN /opt/ratchet/bin/python -m pip install --no-cache-dir ${EMBEDDED}
COPY stand_in.py /opt/stand_in.py
RUN chmod 0755 /opt/stand_in.py && mv /usr/bin/prometheus-alertmanager /usr/bin/alertmanager \
    && for name in minio mc clickhouse-server loki alloy grafana; do ln -s /opt/stand_in.py /usr/bin/$name; done \
    && install -d -o 101 -g 101 /var/lib/clickhouse && install -d -o 472 -g 0 /var/lib/grafana \
    && install -d -o 65534 -g 65534 /prometheus /alertmanager && install -d -o 10001 -g 10001 /loki \
    && install -d /var/lib/alloy/data
WORKDIR /

FROM servers AS nats
CMD ["nats-server"]

FROM servers AS clickhouse
ENTRYPOINT ["clickhouse-server"]
CMD []

FROM servers AS minio
ENTRYPOINT ["minio"]

FROM servers AS prometheus
ENTRYPOINT ["prometheus"]

FROM servers AS alertmanager
ENTRYPOINT ["alertmanager"]

FROM servers AS loki
ENTRYPOINT ["loki"]

FROM servers AS alloy
ENTRYPOINT ["alloy"]

FROM servers AS grafana
ENTRYPOINT ["grafana"]

FROM ${BASE} AS mlflow
ARG MLFLOW
RUN python3 -m venv /opt/mlflow && /opt/mlflow/bin/python -m pip install --no-cache-dir ${MLFLOW}
ENV PATH=/opt/mlflow/bin:$PATH
