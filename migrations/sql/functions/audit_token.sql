CREATE OR REPLACE FUNCTION audit_token() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO audit (kind, owner, actor, detail) SELECT
        CASE TG_OP WHEN 'INSERT' THEN 'token.created' ELSE 'token.deleted' END, coalesce(NEW.owner, OLD.owner),
        actor_in_scope(), json_build_object('token', coalesce(NEW.id, OLD.id), 'name', coalesce(NEW.name, OLD.name));
    RETURN NULL;
END
$$;
