-- The words of a turn that has ended, and of the results of its tools if its owner wants that; not of encrypted texts.
CREATE OR REPLACE FUNCTION search_index(chat uuid, turn uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    of_chat record;
BEGIN
    SELECT * INTO of_chat FROM search_chats WHERE chat_id = chat;
    IF NOT FOUND THEN
        PERFORM search_assign(chat, false);
        SELECT * INTO of_chat FROM search_chats WHERE chat_id = chat;
    END IF;
    IF NOT FOUND THEN  -- it was deleted in the same transaction
        RETURN;
    END IF;
    INSERT INTO search_texts (chat_id, turn_id, role, of_tools, owner, segment, form, created_at, added_at, words)
    SELECT chat_id, turns.id, role, of_tools, of_chat.owner, of_chat.segment, of_chat.form, turns.created_at,
        clock_timestamp(), search_vector(of_chat.language, coalesce(texts, ''))
    FROM turns CROSS JOIN LATERAL (
        SELECT type = 'tool_result' AS of_tools, string_agg(left(text, 50000), ' ' ORDER BY index)
            FILTER (WHERE NOT starts_with(text, 'turnstream-text:1:')) AS texts FROM blocks
        WHERE turn_id = turns.id AND (
            type IN ('text', 'user_text') OR type = 'tool_result' AND of_chat.tool_results
        )
        GROUP BY 1
        UNION ALL
        SELECT false, '' WHERE NOT EXISTS (
            SELECT FROM blocks WHERE turn_id = turns.id AND type IN ('text', 'user_text')
        )
    ) AS parts
    WHERE turns.id = turn AND chat_id = chat AND ended_at IS NOT NULL
    ON CONFLICT (chat_id, turn_id, role, of_tools) DO UPDATE
    SET words = EXCLUDED.words, form = EXCLUDED.form, added_at = EXCLUDED.added_at;
END
$$;
