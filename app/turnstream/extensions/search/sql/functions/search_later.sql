-- The words of each text and title that came later than the vocabulary of their segment. Without a vocabulary these are
-- all titles, and all texts: at most the newest 5,000, with 8 MB.
CREATE OR REPLACE FUNCTION search_later(part bigint) RETURNS SETOF tsvector LANGUAGE sql STABLE AS $$
    WITH known AS (
        SELECT CASE WHEN vocabulary IS NULL THEN '-infinity' ELSE covered_until END AS until
        FROM search_segments WHERE id = part
    )
    SELECT title FROM search_chats WHERE segment = part AND added_at > (SELECT until FROM known)
    UNION ALL
    SELECT words FROM (
        SELECT words, sum(pg_column_size(words)) OVER (ORDER BY added_at DESC ROWS UNBOUNDED PRECEDING) AS size
        FROM search_texts WHERE segment = part AND added_at > (SELECT until FROM known)
        ORDER BY added_at DESC LIMIT 5000
    ) AS newest WHERE size <= 8000000
$$;
