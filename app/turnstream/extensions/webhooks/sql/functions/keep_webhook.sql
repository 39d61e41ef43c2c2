-- One place for all ways to end a turn. The replicas name in their rows which webhooks they want: a pooler gives each
-- transaction another connection, so a setting of a connection is lost. Older versions make that setting.
CREATE OR REPLACE FUNCTION keep_webhook() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('turnstream.webhook', true) = 'on'
        OR EXISTS (SELECT FROM replicas WHERE 'ended' = ANY(webhooks))
    THEN
        INSERT INTO webhooks (turn_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
