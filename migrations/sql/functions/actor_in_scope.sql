-- The engine and commands, whose connections own the tables, need no signature.
CREATE OR REPLACE FUNCTION actor_in_scope() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    actor text := nullif(current_setting('turnstream.actor', true), '');
BEGIN
    IF NOT pg_has_role(session_user, current_user, 'MEMBER') THEN
        actor := signed_value('actor', coalesce(actor, ''));
    END IF;
    RETURN nullif(actor, '');
END
$$;
