-- A step of the indexer: up to `most` rows, the oldest first; returns how many these were. What a deletion or a move of
-- its owner holds is left for a later step. A step that fails for what is in its texts is done again, text by text. A
-- text that fails alone stays with the words of Postgres in `refused`, and is left out until somebody sets that to
-- null. Any other error passes, or is about all texts.
CREATE OR REPLACE FUNCTION search_index_next(most integer) RETURNS integer LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    taken bigint[];
    one bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock('search_pending'::regclass::oid::bigint) THEN
        RETURN 0;
    END IF;
    taken := ARRAY(
        SELECT search_pending.id FROM search_pending JOIN chats ON chats.id = chat_id
        WHERE refused IS NULL
        ORDER BY search_pending.id LIMIT most FOR KEY SHARE OF chats SKIP LOCKED
    );
    IF cardinality(taken) < most THEN
        DELETE FROM search_pending WHERE NOT EXISTS (SELECT FROM chats WHERE chats.id = chat_id);
    END IF;
    BEGIN
        RETURN search_index_rows(taken);
    EXCEPTION WHEN data_exception OR program_limit_exceeded OR integrity_constraint_violation OR internal_error THEN
        FOREACH one IN ARRAY taken LOOP
            BEGIN
                PERFORM search_index_rows(ARRAY[one]);
            EXCEPTION
                WHEN data_exception OR program_limit_exceeded OR integrity_constraint_violation OR internal_error THEN
                    UPDATE search_pending SET refused = SQLERRM WHERE id = one;
            END;
        END LOOP;
        RETURN cardinality(taken);
    END;
END
$$;
