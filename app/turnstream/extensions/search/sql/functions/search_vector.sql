-- The words of a text as they are, and their stems, marked by ~, where these are no words of it; none of an encrypted one.
-- Long "words" are data. The limits hold the vector below 1 MB. Most texts have no stems to add and no word to leave
-- out: 26 characters may have more than 100 bytes.
CREATE OR REPLACE FUNCTION search_vector(language text, content text) RETURNS tsvector LANGUAGE plpgsql STABLE AS $$
DECLARE
    plain text := search_plain(CASE WHEN starts_with(content, 'turnstream-text:1:') THEN '' ELSE left(content, 50000) END);
    vector tsvector := strip(to_tsvector('pg_catalog.simple', plain));
    words text[];
    stems text[];
BEGIN
    IF language = 'simple' AND length(vector) <= 8000 AND plain !~ '\S{26}' THEN
        RETURN vector;
    END IF;
    words := tsvector_to_array(vector);
    IF EXISTS (
        SELECT FROM pg_ts_config
        WHERE cfgname = language AND cfgname <> 'simple' AND cfgnamespace = 'pg_catalog'::regnamespace
    ) THEN
        stems := tsvector_to_array(ts_delete(to_tsvector(('pg_catalog.' || language)::regconfig, plain), words));
    END IF;
    RETURN coalesce((
        SELECT array_to_tsvector(array_agg(lexeme)) FROM (
            SELECT word AS lexeme FROM unnest(words) AS word WHERE octet_length(word) <= 100
            UNION ALL
            SELECT '~' || stem FROM unnest(stems) AS stem WHERE octet_length(stem) <= 100
            LIMIT 8000
        ) AS kept
    ), ''::tsvector);
END
$$;
