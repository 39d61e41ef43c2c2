-- An answer that changes is in the trail too, else a first one that no entry is made of would hide the second. What a
-- grant answers is inserted with its answer; what expires has no person.
CREATE OR REPLACE TRIGGER approval_audited AFTER UPDATE OF answer ON asks FOR EACH ROW
WHEN (NEW.kind = 'approval' AND OLD.answer::text IS DISTINCT FROM NEW.answer::text
    AND NEW.answer->>'kind' IN ('approve', 'deny'))
EXECUTE FUNCTION audit_approval();
