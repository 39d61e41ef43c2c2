-- The words of a segment, up to some time: a search leaves out a segment that has not all of its words, but for what
-- came later. Above 900 kB they are left out, and the segment is always read.
CREATE OR REPLACE FUNCTION search_cover(part bigint, until timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    before record;
    lexemes text[];
    size bigint;
BEGIN
    SELECT covered_until, resets, vocabulary INTO before FROM search_segments WHERE id = part;
    SELECT array_agg(lexeme), sum(octet_length(lexeme)) INTO lexemes, size FROM (
        SELECT unnest(tsvector_to_array(before.vocabulary)) AS lexeme
        UNION
        SELECT unnest(tsvector_to_array(words)) FROM search_texts
        WHERE segment = part AND added_at > before.covered_until AND added_at <= until
        UNION
        SELECT unnest(tsvector_to_array(title)) FROM search_chats
        WHERE segment = part AND added_at > before.covered_until AND added_at <= until
    ) AS words;
    UPDATE search_segments
    SET vocabulary = CASE WHEN size <= 900000 THEN array_to_tsvector(lexemes) END, covered_until = until
    WHERE id = part AND resets = before.resets AND covered_until = before.covered_until;
END
$$;
