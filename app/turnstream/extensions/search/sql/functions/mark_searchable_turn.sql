CREATE OR REPLACE FUNCTION mark_searchable_turn() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO search_pending (owner, chat_id, turn_id) SELECT owner, id, NEW.id FROM chats WHERE id = NEW.chat_id;
    RETURN NULL;
END
$$;
