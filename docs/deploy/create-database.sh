#!/bin/sh
# Makes the roles and the database of the server when Postgres starts on an empty volume (docker-compose.yml). It may run
# again: what is there stays. No role is a superuser: `turnstream` owns its database, `turnstream_api` is that of the API,
# which owns nothing, and nobody can log in as `turnstream_functions`, to which the functions of the tables belong.
set -eu
psql --set ON_ERROR_STOP=1 --set password="$SERVER_POSTGRES_PASSWORD" \
    --set api_password="$API_POSTGRES_PASSWORD" --username "${POSTGRES_USER:-postgres}" <<'SQL'
SELECT format('CREATE ROLE %I %s', name, rights) FROM (VALUES
    ('turnstream', format('LOGIN PASSWORD %L', :'password')),
    ('turnstream_api', format('LOGIN PASSWORD %L', :'api_password')),
    ('turnstream_functions', 'NOLOGIN BYPASSRLS')
) AS roles (name, rights) WHERE to_regrole(name) IS NULL \gexec
GRANT turnstream_functions TO turnstream;
SELECT 'CREATE DATABASE turnstream OWNER turnstream'
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'turnstream') \gexec
SQL
