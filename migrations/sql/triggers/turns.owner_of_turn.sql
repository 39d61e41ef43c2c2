CREATE OR REPLACE TRIGGER owner_of_turn BEFORE INSERT OR UPDATE OF status ON turns FOR EACH ROW
WHEN (NEW.queue_owner IS NULL AND NEW.status IN ('queued', 'running', 'waiting')) EXECUTE FUNCTION keep_owner_of_turn();
