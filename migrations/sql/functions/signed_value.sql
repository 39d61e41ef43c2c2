-- The signed value behind its signature. A value that is not signed is refused: a wrong key makes an error, not a chat
-- that seems to be gone. The function has the rights of the others, which call it. A replica of a version before
-- signatures signs nothing: unsigned values are accepted while one is alive.
CREATE OR REPLACE FUNCTION signed_value(kind text, value text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF value IS NULL THEN
        RETURN NULL;
    END IF;
    IF EXISTS (
        SELECT FROM signing_key WHERE left(value, 64) = encode(
            sha256(outer_pad || sha256(inner_pad || convert_to(kind || substr(value, 65), 'UTF8'))), 'hex'
        )
    ) THEN
        RETURN substr(value, 66);
    END IF;
    IF EXISTS (SELECT FROM replicas WHERE NOT signs AND lease_until > now() - interval '5 minutes') THEN
        RETURN value;
    END IF;
    RAISE EXCEPTION 'the % of this statement is not signed by a server of this database', kind
    USING ERRCODE = 'insufficient_privilege', HINT = 'Restart the servers if the database was restored.';
END
$$;
