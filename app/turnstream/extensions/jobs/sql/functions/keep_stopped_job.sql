-- One place for all ways to stop a job, and for the deletion of its chat. The jobs of an owner who moves are deleted here
-- because they continue in another cell.
CREATE OR REPLACE FUNCTION keep_stopped_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO stopped_jobs (id, owner, turn_id, round, tool_use_id, name, handle)
    SELECT OLD.id, OLD.queue_owner, OLD.turn_id, OLD.round, OLD.tool_use_id, OLD.name, OLD.handle
    WHERE OLD.queue_owner IS NOT NULL
      AND NOT EXISTS (SELECT FROM moves WHERE moves.owner = OLD.queue_owner AND state <> 'arrived')
    ON CONFLICT DO NOTHING;
    PERFORM pg_notify(
        'turnstream' || CASE TG_TABLE_SCHEMA WHEN 'public' THEN '' ELSE '.' || left(TG_TABLE_SCHEMA, 50) END, 'jobs'
    );
    RETURN NULL;
END
$$;
