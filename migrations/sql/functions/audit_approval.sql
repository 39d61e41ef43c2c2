-- The trail is written by triggers, so that no statement can forget its entry. They write as the owner of the
-- functions: a role that changes these rows need not be allowed to write the trail.
CREATE OR REPLACE FUNCTION audit_approval() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO audit (kind, owner, actor, detail)
    SELECT CASE NEW.answer->>'kind' WHEN 'approve' THEN 'approval.given' ELSE 'approval.denied' END, owner,
        actor_in_scope(),
        json_build_object(
            'chat', chats.id, 'turn', NEW.turn_id, 'round', NEW.round, 'tool_use_id', NEW.tool_use_id,
            'tool', NEW.name, 'input_digest', NEW.digest,
            'changed_input_sha256', encode(sha256(convert_to(NEW.answer->>'input', 'UTF8')), 'hex')
        )
    FROM turns JOIN chats ON chats.id = chat_id WHERE turns.id = NEW.turn_id;
    RETURN NULL;
END
$$;
