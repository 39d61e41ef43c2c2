"""The age of the oldest open transaction."""

from turnstream.storage.database import Statement

# Only among the sessions that are visible to the server's user: its own sessions, or with the role pg_monitor all.
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
