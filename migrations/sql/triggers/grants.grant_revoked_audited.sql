-- A grant that was revoked and is given again is in the trail too.
CREATE OR REPLACE TRIGGER grant_revoked_audited AFTER UPDATE OF revoked_at ON grants FOR EACH ROW
WHEN (OLD.revoked_at IS DISTINCT FROM NEW.revoked_at) EXECUTE FUNCTION audit_grant();
