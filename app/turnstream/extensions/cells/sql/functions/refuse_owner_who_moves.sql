-- The lock waits for a move that copies at the same time. Error class TS is not one of Postgres.
CREATE OR REPLACE FUNCTION refuse_owner_who_moves() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE move moves;
BEGIN
    SELECT * INTO move FROM moves WHERE owner = NEW.owner AND state <> 'arrived' FOR KEY SHARE;
    IF move.state = 'gone' OR move.held_until > clock_timestamp() THEN
        RAISE EXCEPTION 'the owner is moved to the cell %', move.cell USING ERRCODE = 'TS001';
    END IF;
    RETURN NEW;
END
$$;
