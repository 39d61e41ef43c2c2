CREATE OR REPLACE FUNCTION keep_language_of_documents() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE search_documents SET language = NULL
    WHERE owner = NEW.owner AND language <> coalesce(NEW.language, 'simple');
    RETURN NULL;
END
$$;
