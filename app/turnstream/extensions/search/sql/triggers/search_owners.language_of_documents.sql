CREATE OR REPLACE TRIGGER language_of_documents AFTER INSERT OR UPDATE ON search_owners
FOR EACH ROW EXECUTE FUNCTION keep_language_of_documents();
