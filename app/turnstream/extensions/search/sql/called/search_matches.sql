-- The chats of one owner in which each of the words begins a word, or has the stem of one. Segments from `first` on are
-- searched, the newest first, until 200 chats are found, or it was enough work; `rest` is in a row of its own: the
-- segment to go on with. A caller to whom row-level security applies has the rows of its owner alone; that role itself
-- could not have the words compared before the policy.
--
-- The texts of a segment are counted once, with the words of each as bits of a number: Postgres takes one row for
-- granted where there are thousands, and would count them once for each chat.
CREATE OR REPLACE FUNCTION search_matches(
    of_owner text, first bigint, wanted text[], with_tools boolean, since timestamptz, until timestamptz, only_chat uuid
) RETURNS TABLE (chat uuid, turn uuid, score integer, rest bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    queries tsquery[];
    wholes tsquery[];
    every tsquery;
    either tsquery;
    part record;
    looked integer := 0;
    seen integer := 0;
    found_chats integer := 0;
    matched integer;
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER')
        AND of_owner IS DISTINCT FROM (SELECT owner_in_scope())
    THEN
        RETURN;
    END IF;
    -- Of each word its tokens, which hold no quotes and no ~: search_plain has replaced them.
    WITH languages AS (
        SELECT DISTINCT unnest(languages) AS language FROM search_segments WHERE owner = of_owner
    ), tokens AS (
        SELECT number, token, (
            SELECT string_agg(
                format(CASE WHEN stem = token THEN ' | ''~%1$s''' ELSE ' | ''~%1$s'' | ''%1$s''' END, stem), ''
            )
            FROM languages CROSS JOIN LATERAL unnest(
                tsvector_to_array(to_tsvector(('pg_catalog.' || language)::regconfig, token))
            ) AS stem
        ) AS stems
        FROM unnest(wanted) WITH ORDINALITY AS word (content, number) CROSS JOIN LATERAL unnest(
            tsvector_to_array(to_tsvector('pg_catalog.simple', search_plain(content)))
        ) AS token
        WHERE octet_length(token) <= 100
    ), of_words AS (
        SELECT string_agg(format('(''%s'':*%s)', token, stems), ' & ')::tsquery AS query,
            string_agg(format('(''%s''%s)', token, stems), ' & ')::tsquery AS whole
        FROM tokens GROUP BY number
    )
    SELECT array_agg(query), array_agg(of_words.whole) INTO queries, wholes FROM of_words;
    IF queries IS NULL THEN
        RETURN;
    END IF;
    every := ('(' || array_to_string(queries, ') & (') || ')')::tsquery;
    either := ('(' || array_to_string(queries, ') | (') || ')')::tsquery;
    FOR part IN
        SELECT id, chats FROM search_segments
        WHERE owner = of_owner AND id <= first AND (
            only_chat IS NULL OR id = (SELECT segment FROM search_chats WHERE chat_id = only_chat AND owner = of_owner)
        )
        ORDER BY id DESC
    LOOP
        IF found_chats >= 200 OR looked >= 3000 OR seen >= 100 THEN
            rest := part.id;
            RETURN NEXT;
            RETURN;
        END IF;
        seen := seen + 1;
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM search_segments WHERE id = part.id AND (
                vocabulary IS NULL OR vocabulary @@ every OR EXISTS (
                    SELECT FROM search_texts
                    WHERE segment = part.id AND added_at > covered_until AND words @@ either
                ) OR EXISTS (
                    SELECT FROM search_chats
                    WHERE segment = part.id AND added_at > covered_until AND title @@ either
                )
            )
        );
        looked := looked + part.chats;
        RETURN QUERY
        WITH of_turns AS (
            SELECT chat_id, turn_id, min(created_at) AS created_at, bit_or(1 << number::integer) AS together,
                bit_or(1 << number::integer) FILTER (WHERE words @@ whole) AS exact
            FROM (
                SELECT chat_id, NULL::uuid AS turn_id, title AS words, created_at FROM search_chats
                WHERE segment = part.id AND title @@ either
                UNION ALL
                SELECT chat_id, turn_id, words, created_at FROM search_texts
                WHERE segment = part.id AND words @@ either AND (with_tools OR NOT of_tools)
            ) AS texts CROSS JOIN unnest(queries, wholes) WITH ORDINALITY AS word (query, whole, number)
            WHERE words @@ query AND (since IS NULL OR created_at >= since) AND (until IS NULL OR created_at < until)
              AND (only_chat IS NULL OR chat_id = only_chat)
            GROUP BY chat_id, turn_id
        ), of_chats AS (
            SELECT *, bit_or(together) OVER of_chat AS anywhere,
                bit_or(together) FILTER (WHERE turn_id IS NULL) OVER of_chat AS titled
            FROM of_turns WINDOW of_chat AS (PARTITION BY chat_id)
        ), counts AS (
            SELECT chat_id, turn_id, created_at, bit_count(anywhere::bit(32)) AS anywhere,
                coalesce(bit_count(titled::bit(32)), 0) AS titled, bit_count(together::bit(32)) AS together,
                coalesce(bit_count(exact::bit(32)), 0) AS exact
            FROM of_chats
        )
        SELECT DISTINCT ON (chat_id) chat_id, CASE WHEN titled < cardinality(queries) THEN turn_id END,
            (4 * titled + 2 * together + exact)::integer, NULL::bigint
        FROM counts WHERE anywhere = cardinality(queries)
        ORDER BY chat_id, turn_id IS NULL, together DESC, exact DESC, created_at, turn_id;
        GET DIAGNOSTICS matched = ROW_COUNT;
        found_chats := found_chats + matched;
    END LOOP;
END
$$;
