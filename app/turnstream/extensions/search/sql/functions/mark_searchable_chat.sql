-- A short row for each title, in the transaction that writes it: texts are indexed after their commit, for many turns
-- together.
CREATE OR REPLACE FUNCTION mark_searchable_chat() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO search_pending (owner, chat_id) SELECT NEW.owner, NEW.id
    WHERE (SELECT coalesce(bool_or('search' = ANY(extensions)), true) FROM replicas);
    IF NOT FOUND THEN
        PERFORM search_wait(NEW.id);
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.settings ->> 'search_language' IS DISTINCT FROM NEW.settings ->> 'search_language' THEN
        INSERT INTO search_backlog (chat_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
