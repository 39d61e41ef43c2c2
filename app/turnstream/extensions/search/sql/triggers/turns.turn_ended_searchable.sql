CREATE OR REPLACE TRIGGER turn_ended_searchable AFTER UPDATE OF ended_at ON turns FOR EACH ROW
WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION mark_searchable_turn();
