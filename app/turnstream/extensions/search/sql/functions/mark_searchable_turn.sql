CREATE OR REPLACE FUNCTION mark_searchable_turn() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- The condition of `search_is_active`, in one query: a call of it would take as long as the rest.
    INSERT INTO search_pending (owner, chat_id, turn_id) SELECT owner, id, NEW.id FROM chats
    WHERE id = NEW.chat_id AND (SELECT coalesce(bool_or('search' = ANY(extensions)), true) FROM replicas);
    IF NOT FOUND THEN
        PERFORM search_wait(id) FROM chats WHERE id = NEW.chat_id;
    END IF;
    RETURN NULL;
END
$$;
