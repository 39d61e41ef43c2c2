-- The chat is to be indexed by a sweep. Its row is locked: a sweep that runs already leaves it alone until the change is
-- committed.
CREATE OR REPLACE FUNCTION search_wait(chat uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    INSERT INTO search_backlog (chat_id) VALUES (chat) ON CONFLICT (chat_id) DO UPDATE SET chat_id = EXCLUDED.chat_id
$$;
