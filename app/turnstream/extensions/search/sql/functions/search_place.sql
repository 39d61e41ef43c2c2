-- Chats without a place in a segment get one, as in `search_assign`, but all of an owner together.
CREATE OR REPLACE FUNCTION search_place(wanted uuid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    of_owner text;
    placed uuid[];
    part bigint;
    room integer;
BEGIN
    FOR of_owner, wanted IN
        SELECT owner, array_agg(id ORDER BY id) FROM chats
        WHERE id = ANY(wanted) AND NOT EXISTS (SELECT FROM search_chats WHERE chat_id = chats.id)
        GROUP BY owner ORDER BY owner
    LOOP
        WHILE cardinality(wanted) > 0 LOOP
            SELECT id, 250 - chats INTO part, room FROM search_segments
            WHERE owner = of_owner AND id > 0 ORDER BY id DESC LIMIT 1 FOR NO KEY UPDATE;
            IF NOT FOUND OR room <= 0 THEN
                INSERT INTO search_segments (id, owner, chats) VALUES (nextval('search_segment_ids'), of_owner, 0)
                RETURNING id, 250 INTO part, room;
            END IF;
            placed := wanted[:room];
            wanted := wanted[room + 1:];
            INSERT INTO search_chats (
                chat_id, owner, segment, language, tool_results, form, created_at, added_at, title
            )
            SELECT chats.id, chats.owner, part, wished, coalesce(tool_results, false),
                wished || CASE WHEN tool_results THEN ', tools' ELSE '' END, chats.created_at, clock_timestamp(),
                search_vector(wished, coalesce(title, ''))
            FROM chats LEFT JOIN search_owners ON search_owners.owner = chats.owner CROSS JOIN LATERAL (
                SELECT coalesce(settings ->> 'search_language', search_owners.language, 'simple')
            ) AS of_chat (wished)
            WHERE chats.id = ANY(placed);
            UPDATE search_segments SET chats = chats + cardinality(placed), languages = ARRAY(
                SELECT unnest(languages)
                UNION
                SELECT language FROM search_chats WHERE chat_id = ANY(placed) AND language <> 'simple'
            ) WHERE id = part;
        END LOOP;
    END LOOP;
END
$$;
