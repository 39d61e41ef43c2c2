-- A place among the running turns of an owner, or in the queue. The lock comes before the snapshots of the queries:
-- each of two transactions sees what the other one has written. It is taken behind that of a chat that exists, and
-- before the first row of a new one. No turn passes those of its owner that are queued. A role of the API takes places
-- of the owner in its scope only.
CREATE OR REPLACE FUNCTION take_place(whose text, most_running integer, most_queued integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER') AND whose IS DISTINCT FROM owner_in_scope() THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(whose, 44));
    IF most_queued IS NOT NULL THEN
        RETURN most_queued > (SELECT count(*) FROM (
            SELECT FROM turns WHERE status = 'queued' AND queue_owner = whose LIMIT most_queued
        ) AS found);
    END IF;
    RETURN NOT EXISTS (SELECT FROM turns WHERE status = 'queued' AND queue_owner = whose)
        AND most_running > (SELECT count(*) FROM (
            SELECT FROM turns WHERE status = 'running' AND queue_owner = whose LIMIT most_running
        ) AS found);
END
$$;
