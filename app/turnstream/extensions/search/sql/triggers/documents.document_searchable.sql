CREATE OR REPLACE TRIGGER document_searchable AFTER INSERT OR UPDATE OF content ON documents
FOR EACH ROW EXECUTE FUNCTION keep_searchable_document();
