-- A step of the sweep: up to `most` documents that are to be indexed. False when nothing is left.
CREATE OR REPLACE FUNCTION search_catch_up_documents(most integer) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    next record;
    indexed integer := 0;
BEGIN
    FOR next IN
        SELECT owner, path, search_language(owner) AS wished FROM search_documents WHERE language IS NULL
        ORDER BY owner, path LIMIT most FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE search_documents SET language = next.wished, words = (
            SELECT search_document_vector(next.wished, next.path, content) FROM documents
            WHERE documents.owner = next.owner AND documents.path = next.path
        )
        WHERE search_documents.owner = next.owner AND search_documents.path = next.path;
        indexed := indexed + 1;
    END LOOP;
    RETURN indexed = most;
END
$$;
