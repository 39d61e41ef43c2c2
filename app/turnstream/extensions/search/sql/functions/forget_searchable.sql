-- What is deleted leaves the words of its segment too: they are collected again.
CREATE OR REPLACE FUNCTION forget_searchable() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE search_segments SET vocabulary = NULL, covered_until = '-infinity', resets = resets + 1
    WHERE id IN (SELECT segment FROM gone);
    RETURN NULL;
END
$$;
