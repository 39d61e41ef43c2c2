-- The revisions between the baseline 0036 and 0087, for databases that have one of them: a database continues with the
-- step behind its own. A step creates only the functions that its rows need before `sql/` is applied. What is here may
-- be in databases: it does not change.

-- revision 0037: reservations of killed calls
ALTER TABLE reservations ADD COLUMN chat_id uuid, ADD COLUMN kind text, ADD COLUMN model text,
    ADD COLUMN request_tokens bigint, ADD COLUMN request_cost numeric;

-- revision 0038: owners of open turns
ALTER TABLE turns ADD COLUMN queue_owner text;
UPDATE turns SET queue_owner = owner FROM chats WHERE chats.id = chat_id AND status IN ('queued', 'running', 'waiting');
-- A turn that comes with its chat in one statement does not see it: it gets its owner when it is queued.
CREATE FUNCTION keep_owner_of_turn() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    BEGIN
        NEW.queue_owner := (SELECT owner FROM chats WHERE id = NEW.chat_id);
        RETURN NEW;
    END
    $$;
CREATE TRIGGER owner_of_turn BEFORE INSERT OR UPDATE OF status ON turns FOR EACH ROW
    WHEN (NEW.queue_owner IS NULL AND NEW.status IN ('queued', 'running', 'waiting')) EXECUTE FUNCTION keep_owner_of_turn();
-- Moves between cells rename the owners of chats.
CREATE FUNCTION follow_owner_of_chat() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    BEGIN
        UPDATE turns SET queue_owner = NEW.owner WHERE chat_id = NEW.id AND status IN ('queued', 'running', 'waiting');
        RETURN NULL;
    END
    $$;
CREATE TRIGGER owner_of_open_turns AFTER UPDATE OF owner ON chats FOR EACH ROW
    WHEN (OLD.owner <> NEW.owner) EXECUTE FUNCTION follow_owner_of_chat();

-- revision 0039: writes of owners
ALTER TABLE accounts ADD COLUMN writes_per_minute numeric DEFAULT 0 NOT NULL,
    ADD COLUMN writes_per_day numeric DEFAULT 0 NOT NULL, ADD COLUMN writes_per_month numeric DEFAULT 0 NOT NULL;

-- revision 0040: reach of tokens
ALTER TABLE browser_tokens ADD COLUMN folder text, ADD COLUMN fixed json;
CREATE TABLE chat_uploads (
    chat_id uuid NOT NULL,
    upload_id uuid NOT NULL,
    CONSTRAINT pk_chat_uploads PRIMARY KEY (chat_id, upload_id),
    CONSTRAINT fk_chat_uploads_chat_id FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT fk_chat_uploads_upload_id FOREIGN KEY (upload_id) REFERENCES uploads (id) ON DELETE CASCADE
);
CREATE INDEX ix_chat_uploads_upload_id ON chat_uploads (upload_id);

-- revision 0041: vacuum of tables that grow, and of those that change
DO $$
    DECLARE entry text;
    BEGIN
        FOREACH entry IN ARRAY '{blocks,rounds,turns,charges,tool_calls,audit,search_texts}'::text[] LOOP
            EXECUTE format('ALTER TABLE %I SET (autovacuum_vacuum_insert_scale_factor = 0.02,'
                ' autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)', entry);
        END LOOP;
        FOREACH entry IN ARRAY
            '{journal_ticks,open_text,search_pending,reservations,replicas,activity,accounts}'::text[]
        LOOP
            EXECUTE format(
                'ALTER TABLE %I SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)', entry);
        END LOOP;
    END
    $$;

-- revision 0042: lineage
ALTER TABLE turns ADD COLUMN lineage integer[];
CREATE FUNCTION keep_lineage() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.lineage := coalesce(OLD.lineage, ARRAY[OLD.attempt]) || NEW.attempt;
        RETURN NEW;
    END
    $$;
CREATE TRIGGER lineage_of_turn BEFORE UPDATE OF attempt ON turns FOR EACH ROW
    WHEN (NEW.attempt <> OLD.attempt AND NEW.lineage IS NOT DISTINCT FROM OLD.lineage) EXECUTE FUNCTION keep_lineage();

-- revision 0043: steps of the clock
CREATE TABLE clock_steps (
    began timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT pk_clock_steps PRIMARY KEY (began)
);

-- revision 0044: deaths
ALTER TABLE turns ADD COLUMN deaths smallint DEFAULT 0 NOT NULL;
ALTER TABLE replicas ADD COLUMN suspects uuid[];

-- revision 0045: index of open turns
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_turns_owners ON turns (status, queue_owner, created_at, id)
    WHERE status IN ('queued', 'running');

-- revision 0046: signed owners; the key is put behind the step
-- All locks at once, before the first change: a replica that runs takes locks of these tables in orders of its own. If
-- the transaction cannot have them all, it keeps none.
DO $$
    DECLARE
        names text := (
            SELECT string_agg(DISTINCT format('%I', relname), ', ') FROM pg_class
            WHERE relkind = 'r' AND relnamespace = to_regnamespace(current_schema()) AND (
                relname IN ('asks', 'grants', 'replicas') OR relrowsecurity AND EXISTS (
                    SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname IN ('owner', 'queue_owner')
                )
            )
        );
    BEGIN
        PERFORM set_config('lock_timeout', '500ms', true);
        LOOP
            BEGIN
                EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', names);
                EXIT;
            EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                PERFORM pg_sleep(0.1);
            END;
        END LOOP;
        PERFORM set_config('lock_timeout', '0', true);
    END
    $$;
CREATE TABLE signing_key (inner_pad bytea NOT NULL, outer_pad bytea NOT NULL);
ALTER TABLE replicas ADD COLUMN signs boolean DEFAULT false NOT NULL;
CREATE FUNCTION signed_value(kind text, value text) RETURNS text LANGUAGE plpgsql STABLE AS $$
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
CREATE FUNCTION owner_in_scope() RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    BEGIN
        RETURN signed_value('owner', nullif(current_setting('turnstream.owner', true), ''));
    END
    $$;
-- Policies of the tables that have an owner themselves are made again (env.py). The others follow from these.
DO $$
    DECLARE entry record;
    BEGIN
        FOR entry IN SELECT relname FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid AND polname = 'by_owner'
            WHERE relnamespace = to_regnamespace(current_schema()) AND EXISTS (
                SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname IN ('owner', 'queue_owner')
            ) ORDER BY relname
        LOOP
            EXECUTE format('DROP POLICY by_owner ON %I', entry.relname);
        END LOOP;
    END
    $$;

-- revision 0047: replicas that decline turns
ALTER TABLE turns ADD COLUMN declined uuid[], ADD COLUMN declined_until timestamp with time zone;
ALTER TABLE replicas ADD COLUMN configuration json;

-- revision 0048: sets of tools
CREATE TABLE tool_sets (
    owner text NOT NULL,
    digest bytea NOT NULL,
    tools json NOT NULL,
    used_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_tool_sets_digest_is_sha256 CHECK (octet_length(digest) = 32),
    CONSTRAINT pk_tool_sets PRIMARY KEY (owner, digest)
);
ALTER TABLE turns ADD COLUMN tool_set bytea;
ALTER TABLE replicas ADD COLUMN reads_tool_sets boolean DEFAULT false NOT NULL;

-- revision 0049: index of tool sets
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_turns_tool_set ON turns (tool_set) WHERE tool_set IS NOT NULL;

-- revision 0050: extensions of replicas
ALTER TABLE replicas ADD COLUMN extensions text[] DEFAULT '{search}' NOT NULL;
DROP FUNCTION IF EXISTS keep_searchable_chat(), keep_searchable_turn();

-- revision 0051: queue
ALTER TABLE deleted_turns DROP CONSTRAINT pk_deleted_turns,
    ADD CONSTRAINT pk_deleted_turns PRIMARY KEY (turn_id, place);
ALTER TABLE replicas ADD COLUMN edits_queue boolean DEFAULT false NOT NULL;

-- revision 0052: jobs
CREATE TABLE jobs (
    id uuid NOT NULL,
    turn_id uuid NOT NULL,
    round integer NOT NULL,
    tool_use_id text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    input text NOT NULL,
    handle json,
    deadline timestamp with time zone NOT NULL,
    due_at timestamp with time zone DEFAULT now() NOT NULL,
    replica uuid,
    attempt integer DEFAULT 0 NOT NULL,
    started_at timestamp with time zone,
    checkpoint json,
    progress text,
    outcome json,
    settled_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_jobs_kind CHECK (kind IN ('tool')),
    CONSTRAINT ck_jobs_outcome_has_time CHECK (outcome IS NULL OR settled_at IS NOT NULL),
    CONSTRAINT ck_jobs_over_has_no_runner CHECK (replica IS NULL OR settled_at IS NULL),
    CONSTRAINT fk_jobs_turn_id FOREIGN KEY (turn_id) REFERENCES turns (id) ON DELETE CASCADE,
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT uq_jobs_turn_id_round_tool_use_id UNIQUE (turn_id, round, tool_use_id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX ix_jobs_unsettled ON jobs (due_at) WHERE settled_at IS NULL;
ALTER TABLE replicas ADD COLUMN runs_jobs boolean DEFAULT false NOT NULL;

-- revision 0053: keys of withdrawn messages
ALTER TABLE idempotency_keys ALTER COLUMN turn_id DROP NOT NULL;

-- revision 0054: index of withdrawn keys
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_idempotency_keys_withdrawn ON idempotency_keys (owner, key)
    WHERE turn_id IS NULL;

-- revision 0055: detached jobs
ALTER TABLE jobs ADD COLUMN token_digest bytea, DROP CONSTRAINT ck_jobs_kind;
ALTER TABLE chats ADD COLUMN of_turn uuid;

-- revision 0056: children
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_chats_of_turn ON chats (of_turn) WHERE of_turn IS NOT NULL;

-- revision 0057: approvers
ALTER TABLE asks ADD COLUMN approvers text[], ADD COLUMN links_revoked_at timestamp with time zone;
ALTER TABLE tokens ADD COLUMN roles text[] DEFAULT '{}' NOT NULL;
ALTER TABLE browser_tokens ADD COLUMN roles text[] DEFAULT '{}' NOT NULL;

-- revision 0058: schedules
CREATE TABLE schedules (
    id uuid NOT NULL,
    owner text NOT NULL,
    name text NOT NULL,
    chat_id uuid,
    request json NOT NULL,
    plan text,
    cron text,
    every double precision,
    zone text NOT NULL,
    missed text NOT NULL,
    grace double precision NOT NULL,
    next_at timestamp with time zone NOT NULL,
    paused text,
    failures integer DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_schedules_one_rule CHECK (num_nonnulls(cron, every) = 1),
    CONSTRAINT ck_schedules_missed CHECK (missed IN ('run_once', 'skip', 'report')),
    CONSTRAINT ck_schedules_paused CHECK (paused IN ('person', 'failures')),
    CONSTRAINT fk_schedules_chat_id FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT pk_schedules PRIMARY KEY (id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX ix_schedules_owner ON schedules (owner);
CREATE INDEX ix_schedules_chat_id ON schedules (chat_id);
CREATE INDEX ix_schedules_due ON schedules (next_at) WHERE paused IS NULL;
CREATE TABLE schedule_runs (
    schedule_id uuid NOT NULL,
    tick timestamp with time zone NOT NULL,
    owner text NOT NULL,
    state text NOT NULL,
    due_at timestamp with time zone DEFAULT now() NOT NULL,
    turn_id uuid,
    chat_id uuid,
    missed integer DEFAULT 0 NOT NULL,
    error text,
    CONSTRAINT ck_schedule_runs_state CHECK (state IN ('pending', 'started', 'ended', 'failed', 'missed')),
    CONSTRAINT ck_schedule_runs_started_has_turn CHECK ((state IN ('started', 'ended')) <= (turn_id IS NOT NULL)),
    CONSTRAINT fk_schedule_runs_schedule_id FOREIGN KEY (schedule_id) REFERENCES schedules (id) ON DELETE CASCADE,
    CONSTRAINT pk_schedule_runs PRIMARY KEY (schedule_id, tick)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX ix_schedule_runs_owner ON schedule_runs (owner);
CREATE INDEX ix_schedule_runs_pending ON schedule_runs (due_at) WHERE state = 'pending';
CREATE INDEX ix_schedule_runs_started ON schedule_runs (tick) WHERE state = 'started';

-- revision 0059: reads of approvers, which are a function

-- revision 0064: keys of owners
CREATE TABLE owner_keys (
    owner text NOT NULL,
    master bytea NOT NULL,
    wrapped bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_owner_keys_master_is_an_id CHECK (octet_length(master) = 8),
    CONSTRAINT pk_owner_keys PRIMARY KEY (owner)
);
CREATE INDEX ix_owner_keys_master ON owner_keys (master);
ALTER TABLE replicas ADD COLUMN master_keys bytea[];

-- revision 0065: roots of charges
ALTER TABLE charges ADD COLUMN root_turn uuid;
ALTER TABLE reservations ADD COLUMN root_turn uuid;

-- revision 0066: index of roots
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_charges_root_turn ON charges (root_turn) WHERE root_turn IS NOT NULL;

-- revision 0067: names and purposes of uploads, and charges of calls outside of chats
ALTER TABLE uploads ADD COLUMN file_name text, ADD COLUMN purpose text;
ALTER TABLE charges DROP CONSTRAINT ck_charges_kind, ALTER COLUMN chat_id DROP NOT NULL;

-- revision 0068: erasures
CREATE TABLE erasures (
    owner text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    due_at timestamp with time zone NOT NULL,
    claimed_until timestamp with time zone,
    CONSTRAINT pk_erasures PRIMARY KEY (owner)
);

-- revision 0069: sign-ins; the next step validates the constraints, which does not keep writers waiting
CREATE TABLE sign_ins (
    owner text NOT NULL,
    server text NOT NULL,
    issuer text,
    scopes text[],
    tokens text,
    expires_at timestamp with time zone,
    version integer DEFAULT 0 NOT NULL,
    signed_in_at timestamp with time zone,
    refreshed_at timestamp with time zone,
    refreshing_until timestamp with time zone,
    state bytea,
    pending text,
    pending_until timestamp with time zone,
    CONSTRAINT ck_sign_ins_tokens_have_time CHECK ((tokens IS NULL) = (signed_in_at IS NULL)),
    CONSTRAINT ck_sign_ins_pending CHECK (num_nulls(state, pending, pending_until) IN (0, 3)),
    CONSTRAINT pk_sign_ins PRIMARY KEY (owner, server)
);
CREATE UNIQUE INDEX ix_sign_ins_state ON sign_ins (state) WHERE state IS NOT NULL;
ALTER TABLE asks DROP CONSTRAINT ck_asks_kind, DROP CONSTRAINT ck_asks_elicitation_has_question,
    ADD CONSTRAINT ck_asks_kind CHECK (kind IN ('client', 'approval', 'elicitation', 'sign_in')) NOT VALID,
    ADD CONSTRAINT ck_asks_elicitation_has_question
        CHECK ((kind IN ('elicitation', 'sign_in')) = (question IS NOT NULL)) NOT VALID;

-- revision 0070: valid constraints of asks
ALTER TABLE asks VALIDATE CONSTRAINT ck_asks_kind;
ALTER TABLE asks VALIDATE CONSTRAINT ck_asks_elicitation_has_question;

-- revision 0071: reports, outcomes of jobs that their turn does not wait for
ALTER TABLE jobs ADD COLUMN reports boolean DEFAULT false NOT NULL, ADD COLUMN delivery text,
    ADD COLUMN delivered_to uuid, ADD COLUMN delivered_round integer;
ALTER TABLE steers ADD COLUMN is_report boolean DEFAULT false NOT NULL;
ALTER TABLE replicas ADD COLUMN knows_reports boolean DEFAULT false NOT NULL;

-- revision 0072: index of reports
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_jobs_undelivered ON jobs (settled_at)
    WHERE reports AND settled_at IS NOT NULL AND delivery IS NULL;

-- revision 0073: questions of jobs
ALTER TABLE jobs ADD COLUMN asked_in integer;

-- revision 0074: shares
CREATE TABLE shares (
    id uuid NOT NULL,
    chat_id uuid NOT NULL,
    turn_id uuid,
    digest bytea NOT NULL,
    live boolean NOT NULL,
    results boolean NOT NULL,
    files boolean NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone,
    CONSTRAINT ck_shares_end CHECK (live = (turn_id IS NULL)),
    CONSTRAINT fk_shares_chat_id FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT fk_shares_turn_id FOREIGN KEY (turn_id) REFERENCES turns (id) ON DELETE CASCADE,
    CONSTRAINT pk_shares PRIMARY KEY (id)
);
CREATE UNIQUE INDEX ix_shares_digest ON shares (digest);
CREATE INDEX ix_shares_chat_id ON shares (chat_id);
CREATE INDEX ix_shares_turn_id ON shares (turn_id);

-- revision 0075: sessions of people who signed in at an issuer
CREATE TABLE login_sessions (
    id uuid NOT NULL,
    owner text NOT NULL,
    hash bytea NOT NULL,
    state bytea NOT NULL,
    issuer text NOT NULL,
    subject text NOT NULL,
    sid text,
    name text,
    scopes text[] NOT NULL,
    roles text[] NOT NULL,
    plan text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    last_used_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT ck_login_sessions_sha256 CHECK (octet_length(hash) = 32 AND octet_length(state) = 32),
    CONSTRAINT pk_login_sessions PRIMARY KEY (id),
    CONSTRAINT uq_login_sessions_hash UNIQUE (hash),
    CONSTRAINT uq_login_sessions_state UNIQUE (state)
);
CREATE INDEX ix_login_sessions_owner ON login_sessions (owner);
CREATE INDEX ix_login_sessions_issuer_subject ON login_sessions (issuer, subject);
CREATE INDEX ix_login_sessions_expires_at ON login_sessions (expires_at);

-- revision 0076: owners of jobs that are not settled
ALTER TABLE jobs ADD COLUMN queue_owner text;
-- Replicas of the version before, which run beside, do not write the column.
CREATE OR REPLACE FUNCTION keep_owner_of_job() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    BEGIN
        NEW.queue_owner := (SELECT owner FROM turns JOIN chats ON chats.id = chat_id WHERE turns.id = NEW.turn_id);
        RETURN NEW;
    END
    $$;
CREATE OR REPLACE TRIGGER owner_of_job BEFORE INSERT ON jobs FOR EACH ROW
    WHEN (NEW.queue_owner IS NULL AND NEW.settled_at IS NULL) EXECUTE FUNCTION keep_owner_of_job();
CREATE OR REPLACE FUNCTION follow_owner_of_chat() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    BEGIN
        UPDATE turns SET queue_owner = NEW.owner WHERE chat_id = NEW.id AND status IN ('queued', 'running', 'waiting');
        UPDATE jobs SET queue_owner = NEW.owner FROM turns
            WHERE turns.chat_id = NEW.id AND turn_id = turns.id AND settled_at IS NULL;
        RETURN NULL;
    END
    $$;
UPDATE jobs SET queue_owner = owner FROM turns JOIN chats ON chats.id = chat_id
    WHERE turns.id = turn_id AND settled_at IS NULL;

-- revision 0077: index of the jobs of an owner
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_jobs_owners ON jobs (queue_owner, name, due_at) WHERE settled_at IS NULL;

-- revision 0078: index of the deadlines of jobs
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_jobs_deadlines ON jobs (deadline) WHERE settled_at IS NULL;

-- revision 0079: index of the jobs that a replica runs
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_jobs_runners ON jobs (replica) WHERE replica IS NOT NULL;

-- revision 0080: index of the jobs that are to report
CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_jobs_reporting ON jobs (turn_id) WHERE reports AND settled_at IS NULL;

-- revision 0081: handles of stopped jobs; triggers add the rows
CREATE TABLE stopped_jobs (
    id uuid NOT NULL,
    owner text NOT NULL,
    turn_id uuid NOT NULL,
    round integer NOT NULL,
    tool_use_id text NOT NULL,
    name text NOT NULL,
    handle json NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    due_at timestamp with time zone DEFAULT now() NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT pk_stopped_jobs PRIMARY KEY (id)
);
CREATE INDEX ix_stopped_jobs_owner ON stopped_jobs (owner);
CREATE INDEX ix_stopped_jobs_due_at ON stopped_jobs (due_at);

-- revision 0082: rates of the keys of providers
CREATE TABLE provider_rates (
    key text NOT NULL,
    state json NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT pk_provider_rates PRIMARY KEY (key)
);

-- revision 0083: members of chats
CREATE TABLE chat_members (
    chat_id uuid NOT NULL,
    member text NOT NULL,
    role text NOT NULL,
    plan text,
    created_by text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_chat_members_role CHECK (role IN ('read', 'write', 'approve')),
    CONSTRAINT fk_chat_members_chat_id FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT pk_chat_members PRIMARY KEY (chat_id, member)
);
CREATE INDEX ix_chat_members_member ON chat_members (member);

-- revision 0084: what an owner has accepted of the tools of an MCP server
ALTER TABLE sign_ins ADD COLUMN tools json;

-- revision 0085: a condition of triggers, which are in files

-- revision 0086: schedules that signed messages start
ALTER TABLE schedules ADD COLUMN trigger json, ADD COLUMN busy_until timestamp with time zone,
    DROP CONSTRAINT ck_schedules_one_rule,
    ADD CONSTRAINT ck_schedules_one_rule CHECK (num_nonnulls(cron, every, trigger) = 1);

-- revision 0087: encrypted documents are searched by their paths alone; the function is in a file
