-- Whatever answers the question of a job wakes it: one that has detached is due, and one that runs looks for the answer.
-- The time of a job does not run while a person is asked: what is left of it for the answer is taken from its deadline.
CREATE OR REPLACE FUNCTION wake_asking_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE jobs SET due_at = clock_timestamp(),
        deadline = deadline - greatest(due_at - clock_timestamp(), interval '0 seconds')
    WHERE turn_id = NEW.turn_id AND round = NEW.round AND attempt = NEW.attempt AND replica IS NULL
      AND tool_use_id = regexp_replace(NEW.tool_use_id, '#[^#]*$', '') AND settled_at IS NULL;
    PERFORM pg_notify(
        'turnstream' || CASE TG_TABLE_SCHEMA WHEN 'public' THEN '' ELSE '.' || left(TG_TABLE_SCHEMA, 50) END, 'jobs'
    );
    RETURN NULL;
END
$$;
