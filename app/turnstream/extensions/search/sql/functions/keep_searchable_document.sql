CREATE OR REPLACE FUNCTION keep_searchable_document() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO search_documents (owner, path, language, words)
    SELECT NEW.owner, NEW.path, language,
        CASE WHEN language IS NULL THEN '' ELSE search_document_vector(language, NEW.path, NEW.content) END
    FROM (SELECT CASE WHEN search_is_active() THEN search_language(NEW.owner) END) AS of_owner (language)
    ON CONFLICT (owner, path) DO UPDATE SET language = EXCLUDED.language, words = EXCLUDED.words;
    RETURN NULL;
END
$$;
