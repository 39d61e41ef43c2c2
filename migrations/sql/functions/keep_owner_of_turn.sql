-- A turn that comes with its chat in one statement does not see it: such a one gets its owner when it is queued.
CREATE OR REPLACE FUNCTION keep_owner_of_turn() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    NEW.queue_owner := (SELECT owner FROM chats WHERE id = NEW.chat_id);
    RETURN NEW;
END
$$;
