# One image for every service: its arguments say what it does (`run NAME`, `migrate`, `doctor`). It writes nothing, so its
# root may be read-only. A ferryman.toml, or the module that `ferryman run module:object` names, goes in /srv.
#
#   docker build --build-arg VERSION=0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" -t ferryman:0.1.0 .

FROM python:3.13-slim AS base

FROM base AS build
WORKDIR /build
COPY requirements.lock pyproject.toml ./
# uv is the lock's version, checked by its hashes: the lines from `uv==` to the first without a continuation.
RUN sed -n '/^uv==/,/[^\\]$/p' requirements.lock > /tmp/uv.lock \
    && pip install --no-cache-dir --root-user-action ignore --require-hashes --no-deps -r /tmp/uv.lock
ENV UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_PYTHON_DOWNLOADS=never
# The lock has the development tools too, so it only constrains what pyproject.toml asks for: --require-hashes refuses
# every package, dependencies included, that does not have the lock's version and one of its hashes.
RUN uv venv --python /usr/local/bin/python /opt/ferryman \
    && uv pip install --python /opt/ferryman --no-build --require-hashes --constraint requirements.lock \
        -r pyproject.toml --extra api --extra email --extra http --extra otel
# Copy the whole context: .dockerignore lets in only the sources of the wheel, the rooms that src/ferryman links to.
COPY . .
# A wheel that lacks files fails here, not when somebody runs the image: a librdkafka property makes `config check` read
# the package's data, and `migrate --sql` reads the migrations.
RUN uv build --wheel --require-hashes --build-constraints requirements.lock --out-dir /tmp/dist \
    && uv pip install --python /opt/ferryman --offline --no-deps /tmp/dist/*.whl \
    && FERRYMAN_KAFKA__CLIENT_ID=image /opt/ferryman/bin/ferryman config check \
    && /opt/ferryman/bin/ferryman migrate --for all --sql > /dev/null

FROM base
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Ferryman" \
    org.opencontainers.image.description="Outbox relay, inbox consumers and sagas on PostgreSQL and Kafka" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 ferryman \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin ferryman
COPY --from=build /opt/ferryman /opt/ferryman
# The health endpoint listens on every address of the container, or neither a probe nor Prometheus could reach it.
ENV PATH="/opt/ferryman/bin:${PATH}" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    FERRYMAN_HEALTH__HOST=0.0.0.0
WORKDIR /srv
# A number, because Kubernetes' runAsNonRoot cannot look up a name.
USER 10001:10001
EXPOSE 9464
# For `ferryman run`; switch it off for commands that end by themselves. It never goes through a proxy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as web; \
        port = os.environ.get('FERRYMAN_HEALTH__PORT', '9464'); \
        web.build_opener(web.ProxyHandler({})).open(f'http://127.0.0.1:{port}/livez', timeout=3)"]
ENTRYPOINT ["ferryman"]
CMD ["--help"]
