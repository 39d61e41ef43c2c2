CREATE OR REPLACE TRIGGER job_deleted AFTER DELETE ON jobs FOR EACH ROW
WHEN (OLD.settled_at IS NULL AND OLD.handle IS NOT NULL AND OLD.kind IN ('tool', 'mcp_task')) EXECUTE FUNCTION keep_stopped_job();
