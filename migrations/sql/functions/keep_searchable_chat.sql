-- No trigger calls it any more.
CREATE OR REPLACE FUNCTION keep_searchable_chat() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM search_assign(NEW.id, false);
    IF TG_OP = 'UPDATE' AND OLD.settings ->> 'search_language' IS DISTINCT FROM NEW.settings ->> 'search_language' THEN
        INSERT INTO search_backlog (chat_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
