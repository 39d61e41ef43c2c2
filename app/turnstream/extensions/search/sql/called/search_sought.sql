-- Each of the wanted words that has tokens: as words that begin so, or have the same stem; as whole words; and as
-- patterns of the text of a vector, for words that have it inside. `needles` are in its binary form too; a vector that
-- has no stems needs no look at the patterns where the tokens may be `anywhere` in a word.
CREATE OR REPLACE FUNCTION search_sought(wanted text[], language text)
RETURNS TABLE (query tsquery, whole tsquery, needles bytea[], patterns text[], anywhere boolean)
LANGUAGE sql STABLE AS $$
    WITH tokens AS (
        SELECT number, token, (
            SELECT string_agg(
                format(CASE WHEN stem = token THEN ' | ''~%1$s''' ELSE ' | ''~%1$s'' | ''%1$s''' END, stem), ''
            )
            FROM unnest(tsvector_to_array(to_tsvector(('pg_catalog.' || language)::regconfig, token))) AS stem
            WHERE language <> 'simple'
        ) AS stems
        FROM unnest(wanted) WITH ORDINALITY AS word (content, number) CROSS JOIN LATERAL unnest(
            tsvector_to_array(to_tsvector('pg_catalog.simple', search_plain(content)))
        ) AS token
        WHERE octet_length(token) <= 100
    )
    SELECT string_agg(format('(''%s'':*%s)', token, stems), ' & ')::tsquery,
        string_agg(format('(''%s''%s)', token, stems), ' & ')::tsquery,
        array_agg(convert_to(token, pg_client_encoding())),
        array_agg(CASE WHEN length(token) >= 3 THEN '''([^~''][^'']*)?' ELSE '''' END || token),
        bool_and(length(token) >= 3)
    FROM tokens GROUP BY number
$$;
