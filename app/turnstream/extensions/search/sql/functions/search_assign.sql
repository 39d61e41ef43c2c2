-- A segment has 250 chats; then its owner gets another one. Chats that were there before the index have segments below
-- zero, the newest first.
CREATE OR REPLACE FUNCTION search_assign(chat uuid, before boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    of_chat record;
    wanted text;
    number bigint;
BEGIN
    SELECT chats.owner, title, settings ->> 'search_language' AS language, chats.created_at,
        search_owners.language AS of_owner, coalesce(tool_results, false) AS tool_results
    INTO of_chat FROM chats LEFT JOIN search_owners ON search_owners.owner = chats.owner WHERE chats.id = chat;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    wanted := coalesce(of_chat.language, of_chat.of_owner, 'simple');
    SELECT segment INTO number FROM search_chats WHERE chat_id = chat;
    IF number IS NULL THEN
        UPDATE search_segments SET chats = chats + 1
        WHERE id = (
            SELECT CASE WHEN before THEN min(id) ELSE max(id) END FROM search_segments
            WHERE owner = of_chat.owner AND (id < 0) = before
        ) AND chats < 250
        RETURNING id INTO number;
    END IF;
    IF number IS NULL THEN
        INSERT INTO search_segments (id, owner, chats)
        VALUES (nextval('search_segment_ids') * CASE WHEN before THEN -1 ELSE 1 END, of_chat.owner, 1)
        RETURNING id INTO number;
    END IF;
    UPDATE search_segments SET languages = array_append(languages, wanted)
    WHERE id = number AND wanted <> 'simple' AND wanted <> ALL (languages);
    INSERT INTO search_chats (chat_id, owner, segment, language, tool_results, form, created_at, added_at, title)
    VALUES (chat, of_chat.owner, number, wanted, of_chat.tool_results,
        wanted || CASE WHEN of_chat.tool_results THEN ', tools' ELSE '' END, of_chat.created_at,
        clock_timestamp(), search_vector(wanted, coalesce(of_chat.title, '')))
    ON CONFLICT (chat_id) DO UPDATE
    SET language = EXCLUDED.language, tool_results = EXCLUDED.tool_results, form = EXCLUDED.form,
        title = EXCLUDED.title, added_at = EXCLUDED.added_at
    WHERE search_chats.segment = EXCLUDED.segment;
END
$$;
