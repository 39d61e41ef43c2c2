"""Compares two settings on one set of questions: the plan, the results, and the table of results."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table
from rich.text import Text

from turnstream.domain.rounds import exact_sum
from turnstream_client.events import Json
from turnstream_lab.judging import Score, Standing, standing_of
from turnstream_terminal.options import assignments, merged, nested, toml_value
from turnstream_terminal.text import one_line

_LIMITS: Final = frozenset(
    {
        "max_rounds",
        "on_max_rounds",
        "max_failed_rounds",
        "continue_after_tools",
        "recovery",
        "max_recoveries",
        "on_provider_failure",
        "compact_at",
        "compaction",
        "earlier_results",
        "hard_max_rounds",
        "max_calls",
        "budget_tokens",
        "budget_cost",
        "budget_seconds",
        "tell_rounds",
    }
)
_SIDES: Final = ("first", "second")
_SHOWN: Final = 160  # characters
_HEADS: Final = ("answer", "rounds", "tools", "tokens in (cached) / out", "seconds", "cost")


@dataclass(frozen=True, slots=True)
class Question:
    """`expected` is the answer that judges expect, as any JSON value."""

    text: str
    expected: Any = None


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """The questions, and for each side (`first`, `second`) the members that are posted with each question."""

    questions: Sequence[Question]
    sides: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Result:
    """One answer to one question under one setting. `tools` counts calls by tool; `cost` is None if no price is known.
    Only a judged answer has a `score`.
    """

    chat: str
    status: str
    stop_reason: str | None
    answer: str
    rounds: int
    tools: Mapping[str, int]
    failed_calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float  # from the question to the end of the turn
    cost: float | None
    score: Score | None = None


# Maps the name of each side to its answers: for each question, the answers of all repetitions.
Answers = Mapping[str, Sequence[Sequence[Result]]]


def read_plan(file: Path, first: Sequence[str], second: Sequence[str]) -> ComparisonPlan:
    """Reads a file with one question per line, or a TOML file with `questions` and the tables [first] and [second].
    Options override the file. Raises click.UsageError.
    """
    text = file.read_text(encoding="utf-8")
    try:
        found: Json = tomllib.loads(text) if file.suffix == ".toml" else {}
    except tomllib.TOMLDecodeError as error:
        raise click.UsageError(f"{file} is not TOML: {error}.") from None
    if file.suffix != ".toml":
        found["questions"] = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if unknown := found.keys() - {"questions", *_SIDES}:
        known = ", ".join(("questions", *_SIDES))
        raise click.UsageError(f"`{min(unknown)}` of {file} is not known; known are {known}.")
    if not found.get("questions"):
        raise click.UsageError(f"`questions` of {file} must hold at least one question.")
    options = {"first": first, "second": second}
    questions = [_question(file, each) for each in found["questions"]]
    return ComparisonPlan(questions, {side: merged(found.get(side, {}), options_of(options[side])) for side in _SIDES})


def _question(file: Path, found: object) -> Question:
    if isinstance(found, str):
        return Question(found)
    if isinstance(found, dict) and isinstance(found.get("question"), str) and found.keys() <= {"question", "expected"}:
        return Question(found["question"], found.get("expected"))
    raise click.UsageError(
        f"`questions` of {file} must hold texts, or tables with `question` and `expected`; {found!r} is neither."
    )


def options_of(words: Iterable[str]) -> Json:
    """Converts `model=x`, `tools=a,b`, `params.max_tokens=100` to members of a POST. A value that is not TOML is a
    text.
    """
    return nested(
        (
            f"limits.{name}" if name in _LIMITS else name,
            [tool for tool in text.split(",") if tool] if name == "tools" else toml_value(text),
        )
        for name, text in assignments(words, "model=claude-haiku-5-5")
    )


def result_of(turn: Json) -> Result:
    calls = [block for block in turn["blocks"] if block["type"] == "tool_use" and not block.get("interrupted")]
    last = max((block["round"] for block in turn["blocks"] if block["type"] == "text"), default=0)
    texts = [block["text"] for block in turn["blocks"] if block["type"] == "text" and block["round"] == last]
    usage, ended = turn["usage"], turn["ended_at"] or turn["created_at"]
    read, written = (usage.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    return Result(
        chat=turn["chat_id"],
        status=turn["status"],
        stop_reason=turn["error"]["type"] if turn["error"] else turn["stop_reason"],
        answer="".join(texts),
        rounds=sum(round["stop_reason"] != "voided" for round in turn["rounds"]),
        tools={name: sum(call["name"] == name for call in calls) for name in {call["name"]: None for call in calls}},
        failed_calls=sum(bool(block.get("is_error")) for block in turn["blocks"]),
        input_tokens=(usage.get("input_tokens") or 0) + read + written,
        cached_tokens=read,
        output_tokens=usage.get("output_tokens") or 0,
        seconds=(datetime.fromisoformat(ended) - datetime.fromisoformat(turn["created_at"])).total_seconds(),
        cost=turn["cost"],
    )


def total_of(results: Sequence[Result]) -> Json:
    costs = [result.cost for result in results if result.cost is not None]
    return {
        "complete": sum(result.status == "complete" for result in results),
        "of": len(results),
        "rounds": sum(result.rounds for result in results),
        "calls": sum(sum(result.tools.values()) for result in results),
        "input_tokens": sum(result.input_tokens for result in results),
        "cached_tokens": sum(result.cached_tokens for result in results),
        "output_tokens": sum(result.output_tokens for result in results),
        "seconds": round(sum(result.seconds for result in results), 3),
        "cost": exact_sum(costs) if len(costs) == len(results) else None,
    }


def standings(found: Answers) -> Mapping[str, Standing] | None:
    """Returns the standings of both settings, or None if no answer was judged."""
    scores = {
        side: [result.score.value if result.score else None for results in answers for result in results]
        for side, answers in found.items()
    }
    if not any(result.score for answers in found.values() for results in answers for result in results):
        return None
    first, second = (scores[side] for side in _SIDES)
    return {_SIDES[0]: standing_of(first, second), _SIDES[1]: standing_of(second, first)}


def as_json(plan: ComparisonPlan, found: Answers) -> Json:
    rows = [
        {
            "question": question.text,
            "expected": question.expected,
            **{side: [asdict(result) for result in answers[place]] for side, answers in found.items()},
        }
        for place, question in enumerate(plan.questions)
    ]
    totals = {side: total_of([each for results in answers for each in results]) for side, answers in found.items()}
    scores = standings(found)
    judged = {side: asdict(standing) for side, standing in scores.items()} if scores else None
    return {"settings": plan.sides, "questions": rows, "totals": totals, "scores": judged}


def table_of(plan: ComparisonPlan, found: Answers) -> Table:
    """Returns a table with a line for each answer under its question, and the sums of each setting at the end."""
    scores = standings(found)
    table = Table(*_HEADS, *(("score",) if scores else ()), show_edge=False, pad_edge=False)
    for place, question in enumerate(plan.questions):
        table.add_row(Text(one_line(question.text)[:_SHOWN], "bold"), end_section=False)
        lines = [(side, result) for side, answers in found.items() for result in answers[place]]
        for number, (side, result) in enumerate(lines, 1):
            ended = "" if result.stop_reason == "end_turn" else f" [{result.status}: {result.stop_reason}]"
            tools = ", ".join(f"{name} {count}" for name, count in result.tools.items())
            failed = f" ({result.failed_calls} failed)" if result.failed_calls else ""
            tokens = _tokens(result.input_tokens, result.cached_tokens, result.output_tokens)
            answer = Text(f"  {side}{ended}: {one_line(result.answer)[:_SHOWN]}")
            figures = (str(result.rounds), Text(tools + failed), tokens, f"{result.seconds:.1f}", _cost(result.cost))
            score = (_score(result.score),) if scores else ()
            table.add_row(answer, *figures, *score, end_section=number == len(lines))
    for side, answers in found.items():
        total = total_of([each for results in answers for each in results])
        heading = Text(f"{side}: {total['complete']} of {total['of']} complete", "bold")
        tokens = _tokens(total["input_tokens"], total["cached_tokens"], total["output_tokens"])
        seconds, cost = f"{total['seconds']:.1f}", _cost(total["cost"])
        score = (_standing(scores[side]),) if scores else ()
        table.add_row(heading, str(total["rounds"]), str(total["calls"]), tokens, seconds, cost, *score)
    return table


def _score(score: Score | None) -> Text:
    if score is None or score.value is None:
        return Text(one_line(score.reason)[:_SHOWN] if score else "")
    return Text(f"{score.value:.2f} {one_line(score.reason)[:_SHOWN]}".rstrip())


def _standing(standing: Standing) -> Text:
    mean = "none" if standing.mean is None else f"{standing.mean:.2f}"
    spread = "" if standing.spread is None else f" ± {standing.spread:.2f}"
    unjudged = f", {standing.unjudged} not judged" if standing.unjudged else ""
    return Text(f"{mean}{spread}, {standing.wins} won, {standing.ties} tied, {standing.losses} lost{unjudged}")


def _tokens(read: int, cached: int, written: int) -> str:
    return f"{read:,} ({cached:,}) / {written:,}"


def _cost(cost: float | None) -> str:
    return "" if cost is None else f"{cost:.4f}"
