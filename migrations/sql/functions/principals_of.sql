-- The principals of a request, a JSON list behind its signature. The engine and commands, whose connections own the
-- tables, need no signature. The function has the rights of the others, which call it.
CREATE OR REPLACE FUNCTION principals_of(value text) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF coalesce(value, '') = '' THEN
        RETURN '{}';
    END IF;
    IF NOT pg_has_role(session_user, current_user, 'MEMBER') THEN
        value := signed_value('principals', value);
    END IF;
    RETURN ARRAY(SELECT json_array_elements_text(value::json));
END
$$;
