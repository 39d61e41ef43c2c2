-- A replica of a version before names no principals, and is refused.
CREATE OR REPLACE FUNCTION check_approver() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT OLD.approvers && principals_of(current_setting('turnstream.principals', true)) THEN
        RAISE EXCEPTION 'the ask % is not answered by this request', NEW.tool_use_id;
    END IF;
    RETURN NEW;
END
$$;
