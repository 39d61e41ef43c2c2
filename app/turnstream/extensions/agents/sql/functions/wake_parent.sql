-- The end of a child makes the job of its call due, in one transaction: no kill comes between them. A job whose row is
-- locked is left out, since a deletion of the calling turn holds it and waits for this turn; the job looks by itself later.
-- The label alone does not name a job: a person may set one. The chat has to belong to the turn of the job.
CREATE OR REPLACE FUNCTION wake_parent() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    woken uuid;
BEGIN
    -- Most chats are no agent's. The plan of this look is kept; the next one is planned for each turn.
    IF NOT EXISTS (SELECT FROM chats WHERE id = NEW.chat_id AND of_turn IS NOT NULL) THEN
        RETURN NULL;
    END IF;
    SELECT jobs.id INTO woken FROM chats JOIN jobs ON jobs.turn_id = chats.of_turn
    WHERE chats.id = NEW.chat_id AND jobs.settled_at IS NULL AND jobs.id::text = NEW.request->'labels'->>'job'
    FOR NO KEY UPDATE OF jobs SKIP LOCKED;
    IF FOUND THEN
        UPDATE jobs SET due_at = clock_timestamp() WHERE id = woken;
        PERFORM pg_notify(
            'turnstream' || CASE current_schema() WHEN 'public' THEN '' ELSE '.' || left(current_schema(), 50) END, 'jobs'
        );
    END IF;
    RETURN NULL;
END
$$;
