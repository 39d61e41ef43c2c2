"""Replicas with different configurations: a turn runs on a replica that has its model, its tools and its functions."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.harness import TICK, Asked, Harness, Replica
from tests.support.model_apis import EXTENSIONS
from turnstream.config import Settings
from turnstream.domain.errors import MODEL_NOT_AVAILABLE, PermanentError
from turnstream.domain.plans import Plan, Plans
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import OutputSpec
from turnstream.engine.hooks import Hooks
from turnstream.extensions.doctor.inspection import inspect_postgres
from turnstream.kit.ids import new_id
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.llm.provider import Provider
from turnstream.scripted import ScriptedProvider, message_of, text
from turnstream.setup.configuration import digests_of
from turnstream.setup.parts import Parts
from turnstream.storage.database import Statement
from turnstream.storage.runs.queue import Queue
from turnstream.tools.outputs import Outputs
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

SCHEMA = '{"type":"object"}'
GET = Statement("SELECT status, declined, started_at FROM turns WHERE id = :turn")
LATER = Statement("UPDATE turns SET declined_until = now() - interval '1 second' WHERE id = :turn RETURNING id")


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


async def judge(*_: object) -> str:
    return ""


def no_model(name: str) -> Provider:
    raise PermanentError(MODEL_NOT_AVAILABLE, f"No provider of the model {name!r} is configured here.")


def answering() -> ScriptedProvider:
    return ScriptedProvider(lambda _: message_of(text("Done.")))


def with_outputs(outputs: Outputs | None = None) -> Toolset:
    return Toolset([look], max_result_chars=1000, patience=TICK, outputs=outputs)


# For each kind: the request of a turn, and the parts of the replica that can run the turn and of the replica that
# cannot.
KINDS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]] = {
    "model": ({}, {}, {"provider": no_model}),
    "tool": ({"tools": [look]}, {"tools": [look]}, {"tools": []}),
    **{
        kind: (
            {"output": spec},
            {"toolset": with_outputs(Outputs({"judge": judge}, {"judge": judge}))},
            {"toolset": with_outputs()},
        )
        for kind, spec in (
            ("validator", OutputSpec(SCHEMA, validator="judge")),
            ("handler", OutputSpec(SCHEMA, handler="judge")),
        )
    },
}


async def declined(harness: Harness, replica: Replica, asked: Asked) -> list[Any]:
    """Returns the replicas that have declined the turn, after this replica has checked it."""
    worker = replica.worker
    worker.wake()
    while worker._woken.is_set() or not worker._woken._waiters or worker._runs:  # noqa: ASYNC110, it has no event for it
        await asyncio.sleep(0)
    row = await harness.database.row(GET, turn=asked.turn)
    assert row is not None
    return [row["status"], *(row["declined"] or [])]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_that_one_replica_cannot_run_runs_on_the_other(harness: Harness, kind: str) -> None:
    request, has, lacks = KINDS[kind]
    asked = await harness.ask(**request)
    with capture_logs() as logged:
        async with harness.replica(**{"provider": answering(), **lacks}) as poor:
            assert await declined(harness, poor, asked) == ["queued", poor.queue.replica]
            async with harness.replica(**{"provider": answering(), **has}) as rich:
                await harness.follow(rich, asked)
    assert "turn.declined" in {line["event"] for line in logged}
    turn = await harness.turn(asked)
    assert turn.error is None or turn.error.type != MODEL_NOT_AVAILABLE


async def test_a_turn_that_no_replica_can_run_ends_after_several_looks(harness: Harness) -> None:
    asked = await harness.ask()
    with capture_logs():
        async with harness.replica(no_model) as poor, harness.replica(no_model) as other:
            await declined(harness, poor, asked)
            await declined(harness, other, asked)
            for looks in range(4):
                row = await harness.database.row(GET, turn=asked.turn)
                assert row is not None
                assert (row["status"], row["started_at"], len(row["declined"])) == ("queued", None, 2 + looks)
                await declined(harness, other, asked)
                await harness.database.row(LATER, turn=asked.turn)
                await declined(harness, other, asked)
            await harness.database.row(LATER, turn=asked.turn)
            await declined(harness, poor, asked)
    turn = await harness.turn(asked)
    assert turn.error is not None
    assert turn.error.type == MODEL_NOT_AVAILABLE
    assert turn.error.message == "No provider of the model 'scripted' is configured here."


async def test_a_cancelled_turn_ends_though_no_replica_can_run_it(harness: Harness) -> None:
    asked = await harness.ask()
    with capture_logs():
        async with harness.replica(no_model) as poor:
            await declined(harness, poor, asked)
            await poor.cancel(asked)
            await harness.follow(poor, asked)
    assert (await harness.turn(asked)).status == "cancelled"


class Watching(Hooks):
    pass


def serving(model: Model) -> Models:
    return Models([ProviderModels(answering(), [model])])


def with_settings(parts: Parts, **changes: Any) -> Parts:
    return replace(parts, settings=Settings(_env_file=None, **changes))


# The differences that two replicas may have. Each function returns a replica that differs.
DIFFERENCES: Mapping[str, Callable[[Parts], Parts]] = {
    "models": lambda parts: replace(parts, models=serving(Model("m", fallbacks=("n",)))),
    "prices": lambda parts: replace(parts, models=serving(Model("m", prices=Prices(1.0, 2.0)))),
    "tools": lambda parts: replace(parts, toolset=Toolset([])),
    "validators and handlers": lambda parts: replace(parts, toolset=with_outputs(Outputs({"judge": judge}))),
    "hooks": lambda parts: replace(parts, hooks=[Watching()]),
    "prompts": lambda parts: with_settings(parts, system_prompt="Be brief."),
    "plans": lambda parts: replace(parts, plans=Plans(Plan("small", running_turns=1))),
    "signing keys": lambda parts: with_settings(parts, signing_secret="a2V5"),
}


@pytest.mark.parametrize("kind", DIFFERENCES)
async def test_differences_between_configurations_of_live_replicas_are_found(harness: Harness, kind: str) -> None:
    parts = Parts(
        Settings(_env_file=None), harness.database, Plans(), serving(Model("m")), with_outputs(), [], EXTENSIONS
    )
    published = [digests_of(parts), digests_of(DIFFERENCES[kind](parts)), None]
    assert digests_of(replace(parts, models=serving(Model("m")), toolset=with_outputs(), plans=Plans())) == published[0]
    for number, configuration in enumerate(published):
        queue = Queue(harness.database, new_id(), f"here:{number}", number, configuration=configuration)
        await queue.renew_lease(60 if number < 2 else -60)
    facts = await inspect_postgres(harness.url)
    assert facts.unlike == [kind]
    assert any(f"the live replicas differ in their {kind}" in note for note in facts.notes())
    await harness.database.rows(Statement("DELETE FROM replicas WHERE address = 'here:1' RETURNING id"))
    assert (await inspect_postgres(harness.url)).unlike == []
