"""Reads the age of the oldest open transaction."""

from turnstream.storage.database import Statement

# Reads only the sessions that the server's database user may see: its own sessions, or all if it has the role
# pg_monitor.
OLDEST_TRANSACTION = Statement(
    """
SELECT coalesce(extract(epoch FROM max(clock_timestamp() - since)), 0)::float AS seconds FROM (
    SELECT xact_start AS since FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    UNION ALL
    SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
) AS transactions
"""
)
