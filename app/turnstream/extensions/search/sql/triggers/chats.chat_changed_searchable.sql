CREATE OR REPLACE TRIGGER chat_changed_searchable AFTER UPDATE OF title, settings ON chats FOR EACH ROW
WHEN (OLD.title IS DISTINCT FROM NEW.title OR OLD.settings::text IS DISTINCT FROM NEW.settings::text)
EXECUTE FUNCTION mark_searchable_chat();
