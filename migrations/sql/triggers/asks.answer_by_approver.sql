-- What expires, and what a message of the owner supersedes, is never run.
CREATE OR REPLACE TRIGGER answer_by_approver BEFORE UPDATE OF answer ON asks FOR EACH ROW
WHEN (OLD.approvers IS NOT NULL AND NEW.answer->>'kind' IN ('approve', 'deny', 'result'))
EXECUTE FUNCTION check_approver();
