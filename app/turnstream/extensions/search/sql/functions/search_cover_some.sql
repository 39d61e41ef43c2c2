-- A step of the sweep over the segments behind `after`: covers those with a hundred texts that are not covered. Texts
-- of the last minute may not be visible yet. Returns the last segment of the step.
CREATE OR REPLACE FUNCTION search_cover_some(after bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    until timestamptz := clock_timestamp() - interval '1 minute';
    next record;
    last bigint;
BEGIN
    FOR next IN SELECT id, covered_until FROM search_segments WHERE id > after ORDER BY id LIMIT 20 LOOP
        last := next.id;
        IF (SELECT count(*) FROM (
            SELECT FROM search_texts WHERE segment = next.id AND added_at > next.covered_until AND added_at <= until
            LIMIT 100
        ) AS later) = 100 THEN
            PERFORM search_cover(next.id, until);
        END IF;
    END LOOP;
    RETURN last;
END
$$;
