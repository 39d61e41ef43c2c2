FROM python:3.11-slim

ENV PATH=/opt/turnstream/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /srv/turnstream

# The dependencies first: they change seldom, so this layer is seldom made again.
COPY requirements.lock ./
RUN python -m venv /opt/turnstream \
    && pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock

COPY pyproject.toml README.md alembic.ini ./
COPY app app
COPY migrations migrations
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --system --no-create-home --shell /usr/sbin/nologin turnstream
USER turnstream

# The server refuses to listen beyond the container before a token was made; docs/operations.md says how.
ENV TURNSTREAM_HOST=0.0.0.0 TURNSTREAM_PORT=8000
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["python", "-c", \
    "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"TURNSTREAM_PORT\"]}/healthz', timeout=2)"]

ENTRYPOINT ["turnstream"]
CMD ["serve"]
