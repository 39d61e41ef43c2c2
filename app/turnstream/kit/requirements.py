"""Sentences for validation errors of pydantic. A predicate names the requirement that a value did not meet."""

from collections.abc import Mapping
from typing import Any

ID_EXAMPLE = "018f2c1a-5b7e-7cc1-9d3a-2f6b8f3c9a10"

_OBJECT, _NUMBER, _WHOLE = "must be an object", "must be a number", "must be a whole number"
_TRUTH, _URL = "must be true or false", "must be a URL, such as https://x.org"
_ID = f"must be an id, such as {ID_EXAMPLE}"
# pydantic's type of an error -> the predicate, with placeholders for pydantic's values.
_PREDICATES: Mapping[str, str] = {
    "bool_parsing": _TRUTH,
    "bool_type": _TRUTH,
    "dict_type": _OBJECT,
    "finite_number": "must be a finite number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "must be greater than {gt:.15g}",
    "greater_than_equal": "must be at least {ge:.15g}",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_type": _WHOLE,
    "less_than": "must be less than {lt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "is required",
    "model_attributes_type": _OBJECT,
    "model_type": _OBJECT,
    "none_required": "must be null or left out",
    "path_type": "must be a path",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_type": "must be a string",
    "string_unicode": "must be Unicode text, without lone surrogates",
    "too_long": "must hold at most {max_length} items",
    "too_short": "must hold at least {min_length} items",
    "url_parsing": _URL,
    "url_scheme": _URL,
    "url_type": _URL,
    "uuid_parsing": _ID,
    "uuid_type": _ID,
    "value_error": "{error}",
}


def requirement(type: str, context: Mapping[str, Any] | None = None) -> str:
    """Returns the predicate of an error `type`, such as "must be at least 1". A ValueError has its own predicate."""
    context = context or {}
    if context.get("field_type") == "Value":  # if a text has a validator, pydantic calls its characters items
        type = f"string_{type}"
    predicate = _PREDICATES.get(type, "is not valid").format_map(context)
    return predicate.replace("at least 1 items", "at least one item").replace(
        "have at least 1 characters", "not be empty"
    )


def sentence(text: str, field: str | None = None) -> str:
    """Returns `text` with a capital letter and a full stop, and with `field` in front unless `text` names the field."""
    if field is not None and f"`{field}`" not in text:
        text = f"`{field}`: {text}"
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."
