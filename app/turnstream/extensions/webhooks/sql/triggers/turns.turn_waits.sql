CREATE OR REPLACE TRIGGER turn_waits AFTER UPDATE OF asked ON turns FOR EACH ROW
WHEN (NEW.asked > OLD.asked) EXECUTE FUNCTION keep_waiting_webhook();
