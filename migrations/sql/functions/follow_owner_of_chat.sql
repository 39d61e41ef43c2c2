-- Moves between cells rename the owners of chats.
CREATE OR REPLACE FUNCTION follow_owner_of_chat() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE turns SET queue_owner = NEW.owner WHERE chat_id = NEW.id AND status IN ('queued', 'running', 'waiting');
    RETURN NULL;
END
$$;
