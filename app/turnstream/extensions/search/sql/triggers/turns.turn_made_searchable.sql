CREATE OR REPLACE TRIGGER turn_made_searchable AFTER INSERT ON turns FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL)
EXECUTE FUNCTION mark_searchable_turn();
