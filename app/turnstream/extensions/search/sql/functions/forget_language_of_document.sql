-- An owner who arrives from another cell has a language only under the own name.
CREATE OR REPLACE FUNCTION forget_language_of_document() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.language := NULL;
    RETURN NEW;
END
$$;
