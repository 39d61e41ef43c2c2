CREATE OR REPLACE TRIGGER chat_made_searchable AFTER INSERT ON chats FOR EACH ROW WHEN (NEW.title IS NOT NULL)
EXECUTE FUNCTION mark_searchable_chat();
