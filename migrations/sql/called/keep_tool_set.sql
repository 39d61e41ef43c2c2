-- Takes the tools out of a request that is written, and stores them once for each owner. The owner is part of the
-- digest, so that one that no turn has is nobody's. The text is not brought into another form: providers get it byte
-- for byte. A replica of a version before looks for the tools in the request: they stay there while one is alive.
--
-- Nobody waits here for another transaction: it may wait for a lock that this one has. The tools stay in the request
-- where another one stores the same set. `used_at` is renewed once an hour; a sweep leaves a set alone for two hours.
CREATE OR REPLACE FUNCTION keep_tool_set(whose text, INOUT request json, OUT tool_set bytea) LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    found json;
    key bytea;
BEGIN
    BEGIN
        found := request->'tools';
    EXCEPTION WHEN untranslatable_character THEN  -- JSON with a NUL is stored, and not looked into
        RETURN;
    END;
    IF json_typeof(found) IS DISTINCT FROM 'array' OR found->0 IS NULL THEN
        RETURN;
    END IF;
    IF NOT pg_has_role(session_user, current_user, 'MEMBER') AND whose IS DISTINCT FROM owner_in_scope() THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM replicas WHERE NOT reads_tool_sets AND lease_until > now() - interval '5 minutes') THEN
        RETURN;
    END IF;
    key := sha256(convert_to(whose || chr(10) || found::text, 'UTF8'));
    IF NOT EXISTS (
        SELECT FROM tool_sets WHERE owner = whose AND digest = key AND used_at > now() - interval '1 hour'
    ) THEN
        IF NOT pg_try_advisory_xact_lock(hashtextextended(encode(key, 'hex'), 48)) THEN
            RETURN;
        END IF;
        INSERT INTO tool_sets (owner, digest, tools) VALUES (whose, key, found)
        ON CONFLICT (owner, digest) DO UPDATE SET used_at = now();
    END IF;
    tool_set := key;
    request := (
        SELECT json_object_agg(name, value) FROM json_each(request) AS part (name, value) WHERE name <> 'tools'
    );
END
$$;
