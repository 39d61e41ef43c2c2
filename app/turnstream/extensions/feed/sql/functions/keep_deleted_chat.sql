-- A trigger, so that a deletion by hand reaches the feed of the owner too.
CREATE OR REPLACE FUNCTION keep_deleted_chat() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO deleted_chats (owner, chat_id, deleted_at) VALUES (OLD.owner, OLD.id, clock_timestamp())
    ON CONFLICT (owner, chat_id) DO UPDATE SET deleted_at = EXCLUDED.deleted_at;
    RETURN NULL;
END
$$;
