CREATE OR REPLACE TRIGGER question_answered AFTER UPDATE OF answer ON asks FOR EACH ROW
WHEN (OLD.answer IS NULL AND NEW.answer IS NOT NULL AND NEW.tool_use_id ~ '#j[0-9]+[.][0-9]+$')
EXECUTE FUNCTION wake_asking_job();
