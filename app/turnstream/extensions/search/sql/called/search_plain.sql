-- Words with blanks between them; of a script without blanks (Thai, Lao, Myanmar, Khmer, Japanese, Chinese) all pairs
-- of neighbours. Postgres's parser alone would drop tags, and keep paths and addresses whole. An expression is faster
-- than `translate`, which looks for each character in the whole list.
CREATE OR REPLACE FUNCTION search_plain(content text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    separators constant text := '[\u00a0\u00a1\u00ab\u00b7\u00bb\u00bf\u2010\u2011\u2013\u2014\u2018\u2019\u201a\u201c'
        '\u201d\u201e\u2022\u2026\u3000\u3001\u3002\u300c\u300d\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f]';
    unspaced constant text := '[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff'
        '\uf900-\ufaff]';
    plain text := regexp_replace(content, '[\u0021-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u007e]', ' ', 'g');
BEGIN
    IF octet_length(plain) = length(plain) THEN
        RETURN plain;
    END IF;
    plain := regexp_replace(plain, separators, ' ', 'g');
    IF plain !~ unspaced THEN
        RETURN plain;
    END IF;
    RETURN regexp_replace(plain, '(' || unspaced || '{1,2})', ' \1 ', 'g') || ' ' || regexp_replace(
        regexp_replace(plain, '(' || unspaced || ')(' || unspaced || '+)', ' \1 \2', 'g'),
        '(' || unspaced || '{1,2})', ' \1 ', 'g'
    );
END
$$;
