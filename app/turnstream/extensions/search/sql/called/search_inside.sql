-- The chats in which each of the words is inside of a word, or begins one, but for those that search_matches finds: in
-- which each begins one, or has the stem of one. Segments are walked as there, until 200 chats are found, or it was
-- enough work: in about nanoseconds 1 for each byte of a segment's words, and 1 for each of the tokens; 5 more where
-- they have all tokens; 30,000 for each chat whose texts are read, and 90,000 more for each word that is inside of too
-- many to ask for them by name.
CREATE OR REPLACE FUNCTION search_inside(
    of_owner text, first bigint, wanted text[], with_tools boolean, since timestamptz, until timestamptz, only_chat uuid
) RETURNS TABLE (chat uuid, turn uuid, score integer, rest bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    tokens text[];
    of_words integer[];
    starts text[];
    needles text[];
    queries tsquery[];
    likes text[];
    patterns text[];
    part record;
    of_segment bytea;
    segment_words text;
    beginnings text[];
    is_inside boolean;
    wider text[];
    wides tsquery[];
    either tsquery;
    work bigint := 0;
    found_chats integer := 0;
    matched integer;
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER')
        AND of_owner IS DISTINCT FROM (SELECT owner_in_scope())
    THEN
        RETURN;
    END IF;
    -- Of each word its tokens, as in search_matches. They hold no quotes and no signs of patterns.
    WITH languages AS (
        SELECT DISTINCT unnest(languages) AS language FROM search_segments WHERE owner = of_owner
    ), of_tokens AS (
        SELECT dense_rank() OVER (ORDER BY number) AS number, token, ARRAY(
            SELECT DISTINCT stem FROM languages CROSS JOIN LATERAL unnest(
                tsvector_to_array(to_tsvector(('pg_catalog.' || language)::regconfig, token))
            ) AS stem
        ) AS stems
        FROM unnest(wanted) WITH ORDINALITY AS word (content, number) CROSS JOIN LATERAL unnest(
            tsvector_to_array(to_tsvector('pg_catalog.simple', search_plain(content)))
        ) AS token
        WHERE octet_length(token) <= 100
    ), as_words AS (
        SELECT number, token,
            ARRAY(SELECT '~' || stem FROM unnest(stems) AS stem) || array_remove(stems, token) AS stems,
            CASE WHEN length(token) >= 3 THEN '%' ELSE '%''' END || token || '%' AS alike,
            CASE WHEN length(token) >= 3 THEN '''([^~''][^'']*)?' ELSE '''' END || token AS pattern
        FROM of_tokens
    ), as_queries AS (
        SELECT *, array_to_string(
            format('''%s'':*', token) || ARRAY(SELECT format('''%s''', stem) FROM unnest(stems) AS stem), ' | '
        ) AS start
        FROM as_words
    ), of_numbers AS (
        SELECT number, string_agg(format('(%s)', start), ' & ')::tsquery AS query,
            array_agg(alike)::text AS alike, array_agg(pattern)::text AS pattern
        FROM as_queries GROUP BY number
    )
    SELECT array_agg(token ORDER BY number, token), array_agg(number ORDER BY number, token),
        array_agg(start ORDER BY number, token), array_agg((token || stems)::text ORDER BY number, token),
        (SELECT array_agg(query ORDER BY number) FROM of_numbers),
        (SELECT array_agg(of_numbers.alike ORDER BY number) FROM of_numbers),
        (SELECT array_agg(of_numbers.pattern ORDER BY number) FROM of_numbers)
    INTO tokens, of_words, starts, needles, queries, likes, patterns FROM as_queries;
    IF NOT EXISTS (SELECT FROM unnest(tokens) AS token WHERE length(token) >= 3) THEN
        RETURN;
    END IF;
    FOR part IN
        SELECT id, chats FROM search_segments
        WHERE owner = of_owner AND id <= first AND (
            only_chat IS NULL OR id = (SELECT segment FROM search_chats WHERE chat_id = only_chat AND owner = of_owner)
        )
        ORDER BY id DESC
    LOOP
        IF found_chats >= 200 OR work >= 60000000 THEN
            rest := part.id;
            RETURN NEXT;
            RETURN;
        END IF;
        -- The binary form of a vector, in the encoding of the client, is made three times as fast as its text.
        of_segment := (
            SELECT coalesce(tsvectorsend(vocabulary), '') || coalesce((
                SELECT string_agg(tsvectorsend(words), '') FROM search_later(part.id) AS words
            ), '') FROM search_segments WHERE id = part.id
        );
        work := work + 10000 + (1 + cardinality(tokens)) * octet_length(of_segment);
        CONTINUE WHEN EXISTS (
            SELECT FROM unnest(needles) AS of_token WHERE NOT EXISTS (
                SELECT FROM unnest(of_token::text[]) AS needle
                WHERE position(convert_to(needle, pg_client_encoding()) IN of_segment) > 0
            )
        );
        segment_words := (
            SELECT concat_ws(' ', vocabulary::text, (
                SELECT string_agg(words::text, ' ') FROM search_later(part.id) AS words
            )) FROM search_segments WHERE id = part.id
        );
        work := work + 5 * octet_length(of_segment);
        wider := starts;
        is_inside := false;
        FOR place IN 1 .. cardinality(tokens) LOOP
            CONTINUE WHEN length(tokens[place]) < 3;
            beginnings := search_beginnings(segment_words, tokens[place]);
            is_inside := is_inside OR beginnings IS NULL OR cardinality(beginnings) > 0;
            wider[place] := CASE WHEN beginnings IS NOT NULL THEN array_to_string(
                starts[place] || ARRAY(SELECT format('''%s'':*', beginning) FROM unnest(beginnings) AS beginning), ' | '
            ) END;
        END LOOP;
        CONTINUE WHEN NOT is_inside;
        wides := ARRAY(
            SELECT CASE WHEN count(sought) = count(*) THEN string_agg(format('(%s)', sought), ' & ')::tsquery END
            FROM unnest(wider, of_words) AS token (sought, number) GROUP BY number ORDER BY number
        );
        either := CASE WHEN array_position(wides, NULL) IS NULL
            THEN ('(' || array_to_string(wides, ') | (') || ')')::tsquery END;
        work := work + part.chats
            * (30000 + 90000 * (cardinality(wides) - cardinality(array_remove(wides, NULL)))::bigint);
        RETURN QUERY
        WITH of_turns AS (
            SELECT chat_id, turn_id, min(created_at) AS created_at, bit_or(1 << number::integer) AS together,
                bit_or(1 << number::integer) FILTER (WHERE words @@ query) AS begun
            FROM (
                SELECT *, CASE WHEN either IS NULL THEN words::text END AS plain FROM (
                    SELECT chat_id, NULL::uuid AS turn_id, title AS words, created_at FROM search_chats
                    WHERE segment = part.id AND (either IS NULL OR title @@ either)
                    UNION ALL
                    SELECT chat_id, turn_id, words, created_at FROM search_texts
                    WHERE segment = part.id AND (either IS NULL OR words @@ either) AND (with_tools OR NOT of_tools)
                ) AS texts_of_segment
                WHERE (since IS NULL OR created_at >= since) AND (until IS NULL OR created_at < until)
                  AND (only_chat IS NULL OR chat_id = only_chat)
                OFFSET 0  -- the text of each is made once
            ) AS texts CROSS JOIN unnest(queries, wides, likes, patterns) WITH ORDINALITY
                AS word (query, wide, alike, pattern, number)
            WHERE coalesce(words @@ wide, words @@ query OR plain LIKE ALL (alike::text[]) AND (
                strpos(plain, '~') = 0 OR plain ~ ALL (pattern::text[])
            ))
            GROUP BY chat_id, turn_id
        ), of_chats AS (
            SELECT *, bit_or(together) OVER of_chat AS anywhere, bit_or(begun) OVER of_chat AS begun_anywhere,
                bit_or(together) FILTER (WHERE turn_id IS NULL) OVER of_chat AS titled
            FROM of_turns WINDOW of_chat AS (PARTITION BY chat_id)
        ), counts AS (
            SELECT chat_id, turn_id, created_at, bit_count(anywhere::bit(32)) AS anywhere,
                coalesce(bit_count(begun_anywhere::bit(32)), 0) AS begun_anywhere,
                coalesce(bit_count(titled::bit(32)), 0) AS titled, bit_count(together::bit(32)) AS together,
                coalesce(bit_count(begun::bit(32)), 0) AS begun
            FROM of_chats
        )
        SELECT DISTINCT ON (chat_id) chat_id, CASE WHEN titled < cardinality(queries) THEN turn_id END,
            (4 * titled + 2 * together + begun)::integer, NULL::bigint
        FROM counts WHERE anywhere = cardinality(queries) AND begun_anywhere < cardinality(queries)
        ORDER BY chat_id, turn_id IS NULL, together DESC, begun DESC, created_at, turn_id;
        GET DIAGNOSTICS matched = ROW_COUNT;
        found_chats := found_chats + matched;
    END LOOP;
END
$$;
