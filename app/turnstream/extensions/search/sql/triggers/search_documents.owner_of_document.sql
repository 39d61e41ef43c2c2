CREATE OR REPLACE TRIGGER owner_of_document BEFORE UPDATE OF owner ON search_documents
FOR EACH ROW WHEN (OLD.owner <> NEW.owner) EXECUTE FUNCTION forget_language_of_document();
