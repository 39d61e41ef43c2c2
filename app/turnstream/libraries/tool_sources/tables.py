"""The tables of a tools file and their keys, as the operator writes them in TOML."""

import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Tag,
    ValidationError,
    create_model,
)

from turnstream.domain.errors import ConfigError
from turnstream.tools.policy import Policy, PolicyOptions

_TABLE, _VALUE = "(table)", "(value)"


def _tag_of(value: object) -> str:
    return _TABLE if isinstance(value, dict) else _VALUE


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _keys_of(options: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass as keys of a table: the names, each with a type and a default."""
    types = get_type_hints(options)
    return {field.name: (_key_type(types[field.name]), _default_of(field)) for field in fields(options)}


def _default_of(field: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field, or an ellipsis for a required field."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return ... if field.default is MISSING else field.default


def _key_type(hint: Any) -> Any:
    """Returns the type that a field has in a file. A dataclass becomes a table, `false` means None, and functions are
    excluded.
    """
    if isinstance(hint, type) and is_dataclass(hint):
        table = create_model("Table", __base__=_Table, **_keys_of(hint))
        return Annotated[table, AfterValidator(lambda keys: hint(**dict(keys)))]
    if get_origin(hint) not in {Union, UnionType}:
        return hint
    kinds = [kind for kind in get_args(hint) if get_origin(kind) is not Callable]
    union: Any = reduce(or_, map(_key_type, kinds))
    if len(kinds) > 2 and any(is_dataclass(kind) for kind in kinds):  # with tags, an error refers to one kind
        tagged = [Annotated[_key_type(kind), Tag(_TABLE if is_dataclass(kind) else _VALUE)] for kind in kinds[:-1]]
        union = Annotated[Union[tuple(tagged)], Discriminator(_tag_of)] | None  # noqa: UP007
    if NoneType not in get_args(hint):
        return union
    return Annotated[union, BeforeValidator(lambda value: None if value is False else value)]


def _with_keys_of_policy(table: type[BaseModel]) -> type[BaseModel]:
    """Adds the fields of Policy as keys at runtime. Type checkers see the decorated class as it is written."""
    return create_model(table.__name__, __base__=table, __module__=table.__module__, **_keys_of(Policy))


@_with_keys_of_policy
class PolicyTable(_Table):
    """A table whose keys are the fields of Policy. If a key is missing, its option was not chosen."""

    def options(self) -> PolicyOptions:
        chosen = self.model_fields_set & {field.name for field in fields(Policy)}
        return {key: getattr(self, key) for key in chosen}


def read_file(path: Path, kinds: Mapping[str, type[PolicyTable]]) -> Mapping[str, Mapping[str, Any]]:
    """Parses and validates a tools file, which may have tables `[policy.NAME]` and tables of `kinds`. Returns the
    tables by kind and name. Raises ConfigError with a sentence for every mistake.
    """
    tables: Mapping[str, type[PolicyTable]] = {**kinds, "policy": PolicyTable}
    keys: dict[str, Any] = {kind: (dict.__class_getitem__((str, table)), {}) for kind, table in tables.items()}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        model: type[_Table] = create_model("ToolsFile", __base__=_Table, **keys)
        return dict(model.model_validate(content))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"TURNSTREAM_TOOLS_FILE: {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        raise ConfigError("; ".join(f"{path}: {_sentence(problem, tables)}" for problem in error.errors())) from None


def _sentence(problem: Any, tables: Mapping[str, type[PolicyTable]]) -> str:
    loc = tuple(part for part in problem["loc"] if part not in {_TABLE, _VALUE})
    # The name of a table has two parts. The name of a policy for one tool of a server has four parts.
    depth = 0 if len(loc) < 2 else 4 if len(loc) > 4 and loc[2] == "policy" else 2
    table, key = ".".join(map(str, loc[:depth])), ".".join(map(str, loc[depth:]))
    if problem["type"] == "extra_forbidden":
        if not table:
            names = ", ".join(f"[{name}.NAME]" for name in tables)
            return f"there is no table [{key}]; the tables are {names}; extensions add others"
        known = PolicyTable if depth == 4 else tables[str(loc[0])]
        close = difflib.get_close_matches(key, known.model_fields, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"the keys are {', '.join(known.model_fields)}"
        # A key with a dot belongs to a nested table, such as `breaker`.
        return f"[{table}] has no key `{key}`" + ("" if "." in key else f"; {hint}")
    if problem["type"] == "dict_type" and not table:
        return f"`{key}` must be tables that have a name each: write [{key}.NAME]"
    message = problem["msg"].removeprefix("Value error, ").partition(" or instance of")[0]
    if problem["type"] == "missing":
        message = "is missing"
    message = f"{message[0].lower()}{message[1:]}"
    return " ".join(filter(None, (table and f"[{table}]", key and f"`{key}`"))) + f": {message}"
