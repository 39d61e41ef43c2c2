-- The chats of agents go with the turns that have called them.
CREATE OR REPLACE FUNCTION forget_children() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM chats USING gone WHERE of_turn = gone.id;
    RETURN NULL;
END
$$;
