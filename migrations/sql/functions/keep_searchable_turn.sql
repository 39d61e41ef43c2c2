-- No trigger calls it any more.
CREATE OR REPLACE FUNCTION keep_searchable_turn() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM search_index(NEW.chat_id, NEW.id);
    RETURN NULL;
END
$$;
