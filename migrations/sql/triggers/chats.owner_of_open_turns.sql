CREATE OR REPLACE TRIGGER owner_of_open_turns AFTER UPDATE OF owner ON chats FOR EACH ROW
WHEN (OLD.owner <> NEW.owner) EXECUTE FUNCTION follow_owner_of_chat();
