"""The command `turnstream compare`."""

import asyncio
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click
import msgspec
from rich.console import Console

from turnstream.domain.errors import TurnstreamError
from turnstream.extension import read_settings
from turnstream_client.errors import ClientError
from turnstream_client.http import AsyncClient
from turnstream_lab.comparison import (
    Answers,
    ComparisonPlan,
    Question,
    Result,
    as_json,
    read_plan,
    result_of,
    standings,
    table_of,
)
from turnstream_lab.judging import Judge, Score, ended_turn, function_judge, rubric_judge, shortfall
from turnstream_terminal.errors import client_errors_explained

_PIPE_WIDTH = 160  # columns of the table if the output is not a terminal


@click.command()
@click.argument("questions", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--first", multiple=True, metavar="NAME=VALUE", help="A setting of the first run; repeatable.")
@click.option("--second", multiple=True, metavar="NAME=VALUE", help="A setting of the second run; repeatable.")
@click.option("--at-once", type=click.IntRange(min=1), default=4, show_default=True, help="Turns that run at once.")
@click.option(
    "--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="How often each question is asked."
)
@click.option("--judge", metavar="MODULE:FUNCTION", help="A function that scores each answer from 0 to 1.")
@click.option(
    "--rubric",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text by which a model scores each answer from 0 to 1.",
)
@click.option("--judge-model", metavar="NAME", help="The model that judges.  [default: that of the server]")
@click.option("--least", type=click.FloatRange(0, 1), help="Exit with 1 if the second mean score is below.")
@click.option("--most-worse", type=click.FloatRange(0, 1), help="Exit with 1 if the second is worse by more than this.")
@click.option("--json", "print_json", is_flag=True, help="Print JSON.")
@click.option("--server", envvar="TURNSTREAM_URL", help="URL of the server.  [default: the one on this machine]")
@click.option("--token", envvar="TURNSTREAM_TOKEN", help="Token that says who you are, if the server asks for one.")
@client_errors_explained()
def compare(
    questions: Path,
    first: tuple[str, ...],
    second: tuple[str, ...],
    at_once: int,
    repeat: int,
    judge: str | None,
    rubric: Path | None,
    judge_model: str | None,
    least: float | None,
    most_worse: float | None,
    print_json: bool,
    server: str | None,
    token: str | None,
) -> None:
    """Ask a server the same questions under two settings.

    The results of both are printed as a table. QUESTIONS is a text file with one question per line, or a TOML file with
    a list `questions` and tables [first] and [second]. Each question is asked in a new chat.

    \b
    Settings: model=NAME  tools=NAME,NAME  max_rounds=3  params.max_tokens=500
    and every other member of the POST of a turn.

    A function (--judge) gets a dict with question, expected, answer, status, tools, … and returns a number, a bool, or
    a tuple of one and a reason. A rubric (--rubric) is given to a model with question and answer.

    \b
    Exit codes: 0  done, and what --least and --most-worse demand is met
                1  it is not met, an answer could not be judged although they were given, or there was an error
    """
    plan = read_plan(questions, first, second)
    if judge and rubric:
        raise click.UsageError("--judge and --rubric exclude each other; name one.")
    if (least is not None or most_worse is not None) and not (judge or rubric):
        raise click.UsageError("--least and --most-worse need scores; name a judge by --judge or --rubric.")
    client = AsyncClient(server or read_settings().local_url, token)
    judges = [function_judge(judge)] if judge else []
    if rubric:
        judges.append(rubric_judge(client, rubric.read_text(encoding="utf-8"), judge_model))
    found = asyncio.run(_compare(client, plan, at_once, repeat, *judges))
    if print_json:
        click.echo(msgspec.json.format(msgspec.json.encode(as_json(plan, found)), indent=2))
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = max(console.width, _PIPE_WIDTH)
        console.print(table_of(plan, found))
    scores = standings(found)
    if scores and (words := shortfall(scores["first"], scores["second"], least, most_worse)):
        click.echo(words, err=True)
        sys.exit(1)


async def _compare(
    client: AsyncClient, plan: ComparisonPlan, at_once: int, repeat: int, judge: Judge | None = None
) -> Answers:
    """Asks all questions under both settings at the same time, so that a busy provider slows both settings alike."""
    slots = asyncio.Semaphore(at_once)

    async def ask(question: Question, side: str) -> Result:
        options = {"chat": {"title": f"compare: {side}"}, **plan.sides[side]}
        async with slots:
            result = result_of(await ended_turn(client, question.text, options))
            if judge is None:
                return result
            if result.status != "complete":
                return replace(result, score=Score(0.0, f"{result.status}: {result.stop_reason}"))
            about = {"question": question.text, "expected": question.expected}
            return replace(result, score=await judge(asdict(result) | about))

    try:
        async with asyncio.TaskGroup() as group:
            asked = {
                side: [[group.create_task(ask(question, side)) for _ in range(repeat)] for question in plan.questions]
                for side in plan.sides
            }
    except* (TurnstreamError, ClientError) as errors:
        raise errors.exceptions[0] from None
    finally:
        await client.aclose()
    return {side: [[task.result() for task in tasks] for tasks in answers] for side, answers in asked.items()}
