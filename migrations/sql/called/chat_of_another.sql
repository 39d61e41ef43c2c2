-- Sees all rows, as their owner does.
CREATE OR REPLACE FUNCTION chat_of_another(uuid) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
    SELECT EXISTS (
        SELECT FROM chats WHERE id = $1 AND owner IS DISTINCT FROM (SELECT owner_in_scope())
    )
$$;
