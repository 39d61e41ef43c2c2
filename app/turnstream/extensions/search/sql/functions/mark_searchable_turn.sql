CREATE OR REPLACE FUNCTION mark_searchable_turn() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF search_is_active() THEN
        INSERT INTO search_pending (owner, chat_id, turn_id) SELECT owner, id, NEW.id FROM chats WHERE id = NEW.chat_id;
    ELSE
        PERFORM search_wait(NEW.chat_id);
    END IF;
    RETURN NULL;
END
$$;
