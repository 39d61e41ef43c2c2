-- The words of a path and of the first 600,000 characters; of an encrypted text those of the path. Pieces of 50,000
-- overlap, so that none cuts a word. A vector holds 1 MB.
CREATE OR REPLACE FUNCTION search_document_vector(language text, path text, content text) RETURNS tsvector
LANGUAGE sql STABLE AS $$
    WITH lexemes AS (
        SELECT unnest(tsvector_to_array(search_vector(language, path))) AS lexeme
        UNION
        SELECT unnest(tsvector_to_array(search_vector(language, substr(content, place, 50000))))
        FROM generate_series(1, least(length(content), 600000), 49900) AS place
        WHERE NOT starts_with(content, 'turnstream-text:1:')
    ), sized AS (
        SELECT lexeme, sum(octet_length(lexeme)) OVER (ORDER BY lexeme ROWS UNBOUNDED PRECEDING) AS size FROM lexemes
    )
    SELECT coalesce(array_to_tsvector(array_agg(lexeme)), '') FROM sized WHERE size <= 900000
$$;
