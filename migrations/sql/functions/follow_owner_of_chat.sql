-- Moves between cells rename the owners of chats.
CREATE OR REPLACE FUNCTION follow_owner_of_chat() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE turns SET queue_owner = NEW.owner WHERE chat_id = NEW.id AND status IN ('queued', 'running', 'waiting');
    UPDATE jobs SET queue_owner = NEW.owner FROM turns
    WHERE turns.chat_id = NEW.id AND turn_id = turns.id AND settled_at IS NULL;
    RETURN NULL;
END
$$;
