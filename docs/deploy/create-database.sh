#!/bin/sh
# Makes the role and the database of the server when Postgres starts on an empty volume (docker-compose.yml). The role is
# no superuser: it owns its database, and nothing else.
set -eu
psql --set ON_ERROR_STOP=1 --set password="$TURNSTREAM_POSTGRES_PASSWORD" --username "${POSTGRES_USER:-postgres}" <<'SQL'
CREATE ROLE turnstream LOGIN PASSWORD :'password';
CREATE DATABASE turnstream OWNER turnstream;
SQL
