"""Migrates databases of the revisions 0036 to 0086, which are older than version 0.1.0, with `sql/steps.sql`."""

from turnstream.extension import Extension

EXTENSION = Extension("old_databases", "migrations of databases from before version 0.1.0")
