-- Of the words that have `token` inside, what is from their beginning to its end. Null where these are many. The words
-- are the text of vectors, each in quotes; stems begin with a ~.
CREATE OR REPLACE FUNCTION search_beginnings(segment_words text, token text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    pieces text[] := trim_array(string_to_array(segment_words, token), 1);
    beginnings text[];
BEGIN
    IF cardinality(pieces) > 1000 THEN
        RETURN NULL;
    END IF;
    beginnings := ARRAY(
        SELECT DISTINCT before || token
        FROM unnest(pieces) AS piece CROSS JOIN LATERAL split_part(right(piece, 100), '''', -1) AS before
        WHERE before <> '' AND NOT starts_with(before, '~')
    );
    RETURN CASE WHEN cardinality(beginnings) <= 50 THEN beginnings END;
END
$$;
