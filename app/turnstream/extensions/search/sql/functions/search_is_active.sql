-- Whether what changes is to be indexed at once: a replica has this extension, or none runs. Else chats wait in the
-- backlog, and documents without words, until one has it: so what waits does not grow with each change. PL/pgSQL keeps
-- the plan for the session; each message asks.
CREATE OR REPLACE FUNCTION search_is_active() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(bool_or('search' = ANY(extensions)), true) FROM replicas);
END
$$;
