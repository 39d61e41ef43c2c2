from app.terminal.text import compact, pretty, same


def test_what_a_person_allows_cannot_look_like_something_else() -> None:
    assert compact({"to": "a\u202eb\u00a0c\x9b"}) == '{"to": "a\\u202eb\\u00a0c\\u009b"}'
    assert compact({"to": "größer 😀"}) == '{"to": "größer 😀"}'
    assert pretty({"to": "one\ntwo"}) == '{\n  "to": "one\\ntwo"\n}'
    assert pretty("no JSON\x1b[2J") == "no JSON\\u001b[2J"


def test_a_change_of_type_is_a_change() -> None:
    assert same({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    assert not same({"a": 1}, {"a": True})
    assert not same({"a": 1}, {"a": 1.0})
