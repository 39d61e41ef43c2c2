-- Sees all rows, as their owner does.
CREATE OR REPLACE FUNCTION turn_of_another(uuid) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
    SELECT EXISTS (
        SELECT FROM turns JOIN chats ON chats.id = chat_id
        WHERE turns.id = $1 AND owner IS DISTINCT FROM (SELECT owner_in_scope())
    )
$$;
