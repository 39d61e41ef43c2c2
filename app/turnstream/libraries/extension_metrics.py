"""The metrics of extensions. The metrics of the core are in `telemetry.py`."""

from prometheus_client import Counter, Gauge, Histogram

from turnstream.telemetry import SECONDS

TURNS_QUEUED = Gauge("turnstream_turns_queued", "Turns that no replica runs yet, of all replicas")
TURNS_WAITING = Gauge("turnstream_turns_waiting", "Turns that wait for a person or a background tool, of all replicas")
OLDEST_QUEUED_SECONDS = Gauge(
    "turnstream_oldest_queued_seconds", "Age of the oldest turn that may run and that no replica runs yet"
)
TURNS_LIMIT = Gauge("turnstream_turns_limit", "Turns that this replica may run at once")
REPLICAS = Gauge("turnstream_replicas", "Replicas that live, as Postgres has them")
TASKS = Gauge("turnstream_tasks", "Tasks of this replica's event loop")
JOBS_RUNNING = Gauge("turnstream_jobs_running", "Jobs that this replica runs")
JOBS_OPEN = Gauge("turnstream_jobs", "Jobs that are not over, of all replicas: due, running or detached", ["state"])
OVERDUE_JOB_SECONDS = Gauge(
    "turnstream_overdue_job_seconds", "For how long the most overdue job has had no runner, or is behind its deadline"
)
JOBS_SETTLED = Counter("turnstream_jobs_settled", "Jobs that are over, by outcome; stopped: by a person", ["outcome"])
REPORTS_DELIVERED = Counter(
    "turnstream_reports_delivered", "Reports of jobs, by delivery: steered, started or discarded", ["delivery"]
)
MCP_CONNECTED = Gauge("turnstream_mcp_connected", "1 while an MCP server is connected, else 0", ["server"])
PROVIDER_RATE_WAITING = Gauge(
    "turnstream_provider_rate_waiting", "Model calls of this replica that wait for a rate limit", ["provider"]
)
PROVIDER_RATE_WAIT_SECONDS = Histogram(
    "turnstream_provider_rate_wait_seconds",
    "How long model calls have waited for a rate limit",
    ["provider"],
    buckets=SECONDS,
)
PROVIDER_KEYS_SET_ASIDE = Gauge(
    "turnstream_provider_keys_set_aside", "Keys that are not used, because the provider has refused them", ["provider"]
)
SCHEDULE_RUNS = Counter("turnstream_schedule_runs", "Runs of schedules, and pauses after failures", ["outcome"])
WEBHOOKS = Counter("turnstream_webhooks", "Tries to deliver a webhook", ["outcome"])
STANDBY_READS = Counter(
    "turnstream_standby_reads",
    "Reads that may be old: made on the standby, or on the primary because it was too old, away or without the object",
    ["outcome"],
)
STANDBY_AGE_SECONDS = Gauge("turnstream_standby_age_seconds", "How old the standby was at most, at the last look at it")
OLDEST_TRANSACTION_SECONDS = Gauge(
    "turnstream_oldest_transaction_seconds", "Age of the oldest open transaction that the server's user may see"
)
SEARCH_LAG_SECONDS = Gauge("turnstream_search_lag_seconds", "Age of the oldest text that the search has not indexed")
BUILD_INFO = Gauge("turnstream_build_info", "The version that runs; the value is 1", ["version", "python"])
LOOP_HELD_SECONDS = Histogram(
    "turnstream_event_loop_held_seconds",
    "How long the event loop did nothing else, by the function that was found at it",
    ["where"],
    buckets=(0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
