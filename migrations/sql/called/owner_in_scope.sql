CREATE OR REPLACE FUNCTION owner_in_scope() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN signed_value('owner', nullif(current_setting('turnstream.owner', true), ''));
END
$$;
