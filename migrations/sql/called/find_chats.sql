-- The chats of an owner that have the words in the title or in a message of a person, the last changed first; the turn where
-- the title has not all of them. Behind a policy the index of the texts could not be used: so this runs with rights of
-- its own, and a caller to whom row-level security applies has the rows of its owner alone.
CREATE OR REPLACE FUNCTION find_chats(
    of_owner text, sought tsquery, since timestamptz, until timestamptz, only_chat uuid, before timestamptz,
    before_id uuid, most integer
) RETURNS TABLE (chat uuid, turn uuid)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER')
        AND of_owner IS DISTINCT FROM (SELECT owner_in_scope())
    THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT DISTINCT ON (turns.chat_id) turns.chat_id, turns.id
        FROM blocks JOIN turns ON turns.id = blocks.turn_id JOIN chats ON chats.id = turns.chat_id
        WHERE to_tsvector('pg_catalog.simple'::regconfig, left(text, 50000)) @@ sought
          AND (type = 'user_text' OR type = 'text' AND blocks.attempt = 0)
          AND owner = of_owner AND (only_chat IS NULL OR chats.id = only_chat)
          AND (since IS NULL OR turns.created_at >= since) AND (until IS NULL OR turns.created_at < until)
        ORDER BY turns.chat_id, turns.created_at DESC, turns.id
    )
    SELECT chats.id, CASE WHEN NOT titled THEN found.id END
    FROM chats LEFT JOIN found ON found.chat_id = chats.id CROSS JOIN LATERAL (
        SELECT coalesce(to_tsvector('pg_catalog.simple'::regconfig, title) @@ sought, false)
            AND (since IS NULL OR created_at >= since) AND (until IS NULL OR created_at < until)
    ) AS each (titled)
    WHERE owner = of_owner AND (titled OR found.id IS NOT NULL) AND (only_chat IS NULL OR chats.id = only_chat)
      AND (before IS NULL OR (updated_at, chats.id) < (before, before_id))
    ORDER BY updated_at DESC, chats.id DESC LIMIT most;
END
$$;
