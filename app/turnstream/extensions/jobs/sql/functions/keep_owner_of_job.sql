CREATE OR REPLACE FUNCTION keep_owner_of_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    NEW.queue_owner := (SELECT owner FROM turns JOIN chats ON chats.id = chat_id WHERE turns.id = NEW.turn_id);
    RETURN NEW;
END
$$;
