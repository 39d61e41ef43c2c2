-- `asked` grows with every ask. Asks that a grant has answered let nobody wait. As for `keep_webhook`, replicas name
-- what they want.
CREATE OR REPLACE FUNCTION keep_waiting_webhook() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('turnstream.waiting_webhook', true) = 'on'
        OR EXISTS (SELECT FROM replicas WHERE 'waiting' = ANY(webhooks))
    THEN
        INSERT INTO waiting_webhooks (turn_id, asked, calls)
        SELECT NEW.id, NEW.asked, json_agg(
            json_build_object('tool_use_id', tool_use_id, 'name', name, 'type', kind, 'expires_at', expires_at)
            ORDER BY round, tool_use_id
        )
        FROM asks WHERE turn_id = NEW.id AND answer IS NULL HAVING count(*) > 0
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
