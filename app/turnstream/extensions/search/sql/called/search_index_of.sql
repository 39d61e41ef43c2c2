-- The texts of an owner are indexed before it searches, the newest first; where the index is busy, without waiting for
-- long. A search goes on without what it cannot index.
CREATE OR REPLACE FUNCTION search_index_of(of_owner text, most integer) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '2s' AS $$
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER')
        AND of_owner IS DISTINCT FROM (SELECT owner_in_scope())
        OR NOT EXISTS (SELECT FROM search_pending WHERE owner = of_owner AND refused IS NULL)
    THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock('search_pending'::regclass::oid::bigint);
    PERFORM search_index_rows(ARRAY(
        SELECT search_pending.id FROM search_pending JOIN chats ON chats.id = chat_id
        WHERE search_pending.owner = of_owner AND refused IS NULL
        ORDER BY search_pending.id DESC LIMIT most FOR KEY SHARE OF chats SKIP LOCKED
    ));
EXCEPTION WHEN OTHERS THEN
    RETURN;
END
$$;
