CREATE OR REPLACE TRIGGER lineage_of_turn BEFORE UPDATE OF attempt ON turns FOR EACH ROW
WHEN (NEW.attempt <> OLD.attempt AND NEW.lineage IS NOT DISTINCT FROM OLD.lineage) EXECUTE FUNCTION keep_lineage();
