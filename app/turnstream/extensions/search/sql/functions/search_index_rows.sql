-- Indexes what the rows `wanted` are of, and returns how many these were. The chats are locked.
CREATE OR REPLACE FUNCTION search_index_rows(wanted bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    of_chats uuid[] := ARRAY(SELECT DISTINCT chat_id FROM search_pending WHERE id = ANY(wanted) AND turn_id IS NULL);
    of_turns uuid[] := ARRAY(SELECT turn_id FROM search_pending WHERE id = ANY(wanted) AND turn_id IS NOT NULL);
    held uuid[] := ARRAY(SELECT id FROM turns WHERE id = ANY(of_turns) FOR KEY SHARE SKIP LOCKED);
    done integer;
BEGIN
    -- A turn that another transaction holds is being deleted, or was; that one may wait for a segment.
    of_turns := ARRAY(SELECT unnest(of_turns) EXCEPT SELECT unnest(held));
    DELETE FROM search_pending WHERE id = ANY(wanted) AND (
        turn_id IS NULL OR turn_id <> ALL(of_turns) OR NOT EXISTS (SELECT FROM turns WHERE turns.id = turn_id)
    );
    GET DIAGNOSTICS done = ROW_COUNT;
    PERFORM search_assign(chat_id, false) FROM search_chats WHERE chat_id = ANY(of_chats);
    PERFORM search_place(of_chats || ARRAY(SELECT chat_id FROM turns WHERE id = ANY(held)));
    INSERT INTO search_texts (chat_id, turn_id, role, of_tools, owner, segment, form, created_at, added_at, words)
    SELECT chat_id, turns.id, role, of_tools, of_chat.owner, segment, form, turns.created_at, clock_timestamp(),
        search_vector(language, coalesce(texts, ''))
    FROM turns JOIN search_chats AS of_chat USING (chat_id) CROSS JOIN LATERAL (
        SELECT type = 'tool_result' AS of_tools, string_agg(left(text, 50000), ' ' ORDER BY index)
            FILTER (WHERE NOT starts_with(text, 'turnstream-text:1:')) AS texts FROM blocks
        WHERE turn_id = turns.id AND (type IN ('text', 'user_text') OR type = 'tool_result' AND tool_results)
        GROUP BY 1
        UNION ALL
        SELECT false, '' WHERE NOT EXISTS (
            SELECT FROM blocks WHERE turn_id = turns.id AND type IN ('text', 'user_text')
        )
    ) AS parts
    WHERE turns.id = ANY(held) AND ended_at IS NOT NULL
    ON CONFLICT (chat_id, turn_id, role, of_tools) DO UPDATE
    SET words = EXCLUDED.words, form = EXCLUDED.form, added_at = EXCLUDED.added_at;
    RETURN done;
END
$$;
