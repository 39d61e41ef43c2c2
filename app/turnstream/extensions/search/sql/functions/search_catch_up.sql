-- A step of the sweep: up to `most` turns of chats whose texts are to be indexed, the newest chat first. False when
-- nothing is left. One transaction indexes at a time: none assigns a chat twice, and two never wait for each other's
-- segments. It waits for another one before it looks: that one may have
-- indexed a part.
CREATE OR REPLACE FUNCTION search_catch_up(most integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    next uuid;
    missing uuid[];
    done integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock('search_pending'::regclass::oid::bigint);
    IF search_index_next(most) > 0 THEN
        RETURN true;
    END IF;
    WHILE done < most LOOP
        SELECT chat_id INTO next FROM search_backlog ORDER BY chat_id DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN done > 0;
        END IF;
        PERFORM search_assign(next, true);
        DELETE FROM search_texts USING search_chats
        WHERE search_chats.chat_id = next AND search_texts.chat_id = next AND of_tools AND NOT tool_results;
        missing := ARRAY(
            SELECT id FROM turns WHERE chat_id = next AND ended_at IS NOT NULL AND NOT EXISTS (
                SELECT FROM search_texts JOIN search_chats USING (chat_id, form)
                WHERE chat_id = next AND turn_id = turns.id AND search_texts.role = turns.role AND NOT of_tools
            )
            LIMIT most - done
        );
        PERFORM search_index(next, turn) FROM unnest(missing) AS turn;
        done := done + 1 + cardinality(missing);
        IF done <= most THEN
            DELETE FROM search_backlog WHERE chat_id = next;
        END IF;
    END LOOP;
    RETURN true;
END
$$;
