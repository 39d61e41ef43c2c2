CREATE OR REPLACE TRIGGER turn_ended_searchable AFTER UPDATE OF ended_at ON turns FOR EACH ROW
WHEN (NEW.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at) EXECUTE FUNCTION mark_searchable_turn();
