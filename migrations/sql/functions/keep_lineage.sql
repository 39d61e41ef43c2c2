-- A replica of a version before draws attempts and knows no lineage: the trigger keeps it for all.
CREATE OR REPLACE FUNCTION keep_lineage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.lineage := coalesce(OLD.lineage, ARRAY[OLD.attempt]) || NEW.attempt;
    RETURN NEW;
END
$$;
