-- The asks that name one of the signed principals as an approver, of all owners: the call with its input, and the title
-- of its chat. Without a `turn` those that wait, else all of that turn. The API's role sees no other row of these chats.
-- Each branch has an index: asks that were answered long ago are not read.
CREATE OR REPLACE FUNCTION asks_to_approve(principals text, turn uuid, most integer) RETURNS TABLE (
    owner text, chat_id uuid, title text, turn_id uuid, round integer, tool_use_id text, name text, kind text,
    digest text, input text, asked_at timestamptz, expires_at timestamptz, waits boolean
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
    SELECT chats.owner, chats.id, chats.title, asks.turn_id, asks.round, asks.tool_use_id, asks.name, asks.kind,
        asks.digest, coalesce(asks.question::text, (
            SELECT text FROM blocks
            WHERE blocks.turn_id = asks.turn_id AND blocks.round = asks.round
              AND blocks.tool_use_id = asks.tool_use_id AND blocks.type = 'tool_use'
        )), asks.asked_at, asks.expires_at, open.waits
    FROM (
        SELECT * FROM asks WHERE $2 IS NULL AND answer IS NULL
        UNION ALL
        SELECT * FROM asks WHERE turn_id = $2
    ) AS asks JOIN turns ON turns.id = asks.turn_id JOIN chats ON chats.id = turns.chat_id,
        LATERAL (
            SELECT asks.answer IS NULL AND coalesce(asks.expires_at > now(), true)
                AND turns.status IN ('queued', 'running', 'waiting') AND NOT turns.cancel_requested
                AND (asks.kind <> 'elicitation' OR CASE WHEN asks.tool_use_id ~ '#j[0-9]+[.][0-9]+$' THEN EXISTS (
                    SELECT FROM jobs WHERE jobs.turn_id = asks.turn_id AND jobs.round = asks.round
                      AND jobs.tool_use_id = regexp_replace(asks.tool_use_id, '#[^#]*$', '')
                      AND jobs.attempt = asks.attempt AND jobs.settled_at IS NULL
                ) ELSE turns.status = 'running' AND asks.attempt = turns.attempt END) AS waits
        ) AS open
    WHERE asks.approvers && principals_of($1) AND chats.owner !~ ' \((arriving|moved to [^()]*)\)$'
      AND (waits OR $2 IS NOT NULL)
    ORDER BY asks.asked_at, asks.turn_id, asks.round, asks.tool_use_id LIMIT $3
$$;
