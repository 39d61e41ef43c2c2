CREATE OR REPLACE FUNCTION search_language(of_owner text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT language FROM search_owners WHERE owner = of_owner), 'simple')
$$;
