CREATE OR REPLACE FUNCTION audit_grant() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO audit (kind, owner, actor, detail)
    SELECT CASE WHEN NEW.revoked_at IS NULL THEN 'grant.given' ELSE 'grant.revoked' END, owner, actor_in_scope(),
        json_build_object(
            'chat', NEW.chat_id, 'turn', NEW.turn_id, 'tool_use_id', NEW.tool_use_id,
            'grant', NEW.id, 'tool', NEW.tool, 'tool_digest', NEW.digest
        )
    FROM chats WHERE chats.id = NEW.chat_id;
    RETURN NULL;
END
$$;
