"""A result that is too long is cut for the model, told so, and kept whole."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.domain.blocks import READ_RESULT
from app.tools.policy import Policy
from app.tools.tool import Outcome


@dataclass(frozen=True, slots=True)
class Sizes:
    """In characters: `shown` to the model, and `kept` of what is longer."""

    shown: int
    kept: int

    def of(self, policy: Policy) -> "Sizes":
        return self if policy.max_result_chars is None else Sizes(policy.max_result_chars, self.kept)


def fit(outcome: Outcome, sizes: Sizes, tool_use_id: str, tools: Iterable[str]) -> Outcome:
    """`tools` are what the model may call: where `read_result` is one of them it is told how to read on."""
    text, of = outcome.text, len(outcome.text)
    if of <= sizes.shown:
        return outcome
    said = f"The result was cut here: {of - sizes.shown:,} of its {of:,} characters are missing."
    note = {"shown": sizes.shown, "of": of}
    if of > sizes.kept:
        said += f" Only the first {sizes.kept:,} were kept."
        note["kept"] = sizes.kept
    if READ_RESULT in tools:
        said += f' To read on, call {READ_RESULT} with tool_use_id "{tool_use_id}" and offset {sizes.shown}.'
    return replace(
        outcome,
        text=f"{text[: sizes.shown]}\n\n[{said}]",
        whole=text[: sizes.kept] if outcome.whole is None else outcome.whole,
        notes={**outcome.notes, "cut": note},
    )
