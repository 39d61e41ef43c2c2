CREATE OR REPLACE TRIGGER job_stopped AFTER UPDATE OF settled_at ON jobs FOR EACH ROW
WHEN (
    OLD.settled_at IS NULL AND NEW.settled_at IS NOT NULL AND OLD.handle IS NOT NULL AND OLD.kind IN ('tool', 'mcp_task') AND (
        NEW.outcome IS NULL OR NEW.outcome #>> '{outcome,kind}' = 'timeout'
        OR NEW.outcome #> '{outcome,notes,stopped}' IS NOT NULL
    )
)
EXECUTE FUNCTION keep_stopped_job();
