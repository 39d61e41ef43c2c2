from dataclasses import fields
from pathlib import Path

import pytest

from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import ToolSpec
from turnstream.libraries.tool_sources.declarations import Declarations, read_declarations
from turnstream.libraries.tool_sources.tables import PolicyTable
from turnstream.tools.policy import Breaker, Policy, PolicyOptions
from turnstream.tools.tool import Outcome, Tool, ToolContext, tool

ENVIRONMENT = {"KEY": "tok-1"}


class ProbeTable(PolicyTable):
    """The table of a tool source that exists only in this test."""

    text: str
    number: int = 0


def read(folder: Path, text: str) -> Declarations:
    path = folder / "tools.toml"
    path.write_text(text, encoding="utf-8")
    return read_declarations(path, ENVIRONMENT, {"probe": ProbeTable})


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value).removeprefix(f"{folder}/tools.toml")


@tool(read_only=True, max_result_chars=900)
async def doc_view(path: str) -> dict[str, str]:
    """Look at a document."""
    return {"path": path}


class Plain:
    """A tool that another class implements, without a settable field for its policy."""

    spec = ToolSpec("plain", "Say hello.", '{"type": "object"}')
    policy = Policy(timeout=9)

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        return Outcome(f"hello to {input_json}")


# --- the content of a file -------------------------------------------------------------------------------------------


def test_tables_of_a_source_are_read_by_kind_and_name(tmp_path: Path) -> None:
    declared = read(tmp_path, "[probe.a]\ntext = 'of $KEY, ${KEY}, $$'\ntimeout = 3\n[probe.b]\ntext = ''")

    def made(name: str, table: ProbeTable) -> tuple[str, str, PolicyOptions]:
        return name, declared.fill("text", table.text), table.options()

    assert declared.each("probe", made) == [("a", "of tok-1, tok-1, $", {"timeout": 3}), ("b", "", {})]
    assert declared.each("other", made) == []


def test_a_file_without_anything_declares_nothing(tmp_path: Path) -> None:
    declared = read(tmp_path, "")
    assert (declared.tables, declared.policies) == ({"probe": {}}, {})


def test_every_field_of_a_policy_can_be_chosen_with_its_own_default() -> None:
    assert set(PolicyTable.model_fields) == {field.name for field in fields(Policy)}
    assert PolicyTable().options() == {}
    defaults = {name: field.default for name, field in PolicyTable.model_fields.items()}
    assert Policy(**defaults) == Policy()
    assert PolicyTable.model_validate({"breaker": {"pause": 1.0}}).options() == {"breaker": Breaker(pause=1.0)}


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = [", " is not TOML: Invalid value (at end of document)"),
        ("[[probe]]\ntext = 'x'", ": `probe` must be tables that have a name each: write [probe.NAME]"),
        ("[prob.a]\ntext = 'x'", ": there is no table [prob]; the tables are [probe.NAME], [policy.NAME]; ext"),
        ("probe = 3", ": `probe` must be tables that have a name each: write [probe.NAME]"),
        ("[probe.a]", ": [probe.a] `text`: is missing"),
        ("[probe.a]\ntext = ''\nnumbr = 3", ": [probe.a] has no key `numbr`; did you mean `number`?"),
        ("[policy.doc_view]\ntimeout = '1'", ": [policy.doc_view] `timeout`: input should be a valid number"),
        ("[policy.doc_view]\ntimout = 1", ": [policy.doc_view] has no key `timout`; did you mean `timeout`?"),
    ],
)
def test_a_mistake_is_reported_with_file_table_and_key(tmp_path: Path, text: str, words: str) -> None:
    assert complaint(tmp_path, text).startswith(words)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TURNSTREAM_TOOLS_FILE: .*tools\.toml cannot be read"):
        read_declarations(tmp_path / "tools.toml", {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("of $NONE", "`text` names $NONE, which is not set: set it in the environment or in .env"),
        ("5 $", "`text` has a $ without the name of a variable: write $$ for a dollar"),
    ],
)
def test_a_source_that_cannot_be_made_is_reported_with_its_table(tmp_path: Path, text: str, words: str) -> None:
    declared = read(tmp_path, f"[probe.a]\ntext = '{text}'")
    with pytest.raises(ConfigError) as caught:
        declared.each("probe", lambda name, table: declared.fill("text", table.text))
    assert str(caught.value) == f"{tmp_path}/tools.toml: [probe.a] {words}"


# --- policies of other tools -----------------------------------------------------------------------------------------


def applied(name: str, options: PolicyOptions, *tools: Tool) -> list[Tool]:
    return Declarations("tools.toml", policies={name: options}).apply_policies(tools)


async def test_a_policy_can_be_chosen_for_any_tool(context: ToolContext) -> None:
    view, plain = applied("doc_view", {"timeout": 2.0, "results": "text"}, doc_view, Plain())
    assert view.policy == Policy(timeout=2, results="text", max_result_chars=900)
    assert await view(context, '{"path": "a"}') == Outcome("path: a")
    assert plain.policy == Policy(timeout=9)


async def test_a_policy_can_be_chosen_for_a_tool_of_any_make(context: ToolContext) -> None:
    (plain,) = applied("plain", {"approval": "always"}, Plain())
    assert plain.policy == Policy(timeout=9, approval="always")
    assert plain.spec == Plain.spec
    assert await plain(context, "{}") == Outcome("hello to {}")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("plain", {"retries": 2}, "plain cannot have `retries`"),
        ("plain", {"memo": True}, "plain cannot have a `memo`"),
        ("plain", {"fallback": "plain"}, "plain cannot be its own `fallback`"),
        ("plain", {"approval_expiry": 5.0}, "`approval_expiry` needs"),
        ("doc_veiw", {"timeout": 5.0}, r"there is no tool of this name; did you mean doc_view\?"),
        ("zzz", {"timeout": 5.0}, "there is no tool of this name; the tools are: doc_view, plain$"),
    ],
)
def test_a_policy_that_a_tool_cannot_have_is_reported(name: str, options: PolicyOptions, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^tools\.toml: \[policy\.{name}\] {words}"):
        applied(name, options, doc_view, Plain())


def test_a_policy_for_a_tool_that_a_source_may_list_later_is_no_mistake(tmp_path: Path) -> None:
    declared = read(tmp_path, "[policy.w__read]\ntimeout = 1")
    assert declared.apply_policies([], ["w__"]) == []
    with pytest.raises(ConfigError, match=r"\[policy\.w__read\] there is no tool"):
        declared.apply_policies([], ["v__"])
