"""A course assistant whose tools use the document store, and whose model acts on the results of the tools."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.assistants.courses import lessons
from tests.support.assistants.model import Model, model_api
from tests.support.assistants.tutor import tutor
from tests.support.assistants.visit import (
    answered,
    calls_of,
    last_words,
    results_of,
    settings_for,
    told_of_results,
    whole,
)
from tests.support.http_client import Client
from tests.support.server_process import Server

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

OUTLINE, SEARCH = "get_course_outline", "search_course_content"
SAME_TOPIC = "Find a course that discusses the same topic as lesson 4 of {}."
FOUND = "Lesson 2 of reading-the-tide discusses the same topic."


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(
    shared_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, Model]]:
    async with model_api(tutor) as model:
        folder = tmp_path_factory.mktemp("courses")
        server = Server(shared_database_url, folder, settings_for(model, "courses:toolset"))
        await server.start()
        async with Client(server.url) as client:
            for path, content in lessons().items():
                assert (await client.put(f"/api/documents/{path}", content=content)).status_code == 201
        yield server.url, model
        await server.close()


@pytest.fixture
def model(running: tuple[str, Model]) -> Model:
    running[1].requests.clear()
    return running[1]


@pytest_asyncio.fixture(loop_scope="module")
async def student(running: tuple[str, Model]) -> AsyncIterator[Client]:
    async with Client(running[0]) as client:
        yield client


async def test_the_tools_of_the_setting_are_offered_to_every_chat(student: Client, model: Model) -> None:
    listed = {tool["name"]: tool for tool in (await student.json("GET", "/api/tools"))["tools"]}
    assert (listed[OUTLINE]["read_only"], listed[SEARCH]["approval"]) == (True, "never")
    await whole(student, await student.say(await student.chat(), "Compare knots and knots."))
    assert {OUTLINE, SEARCH} <= {tool["name"] for tool in model.requests[0]["tools"]}


async def test_a_lesson_is_looked_up_then_its_topic_is_searched_then_the_answer_comes(
    student: Client, model: Model
) -> None:
    turn, events = await whole(student, await student.say(await student.chat(), SAME_TOPIC.format("harbour-pilotage")))
    assert calls_of(turn) == [
        (1, OUTLINE, {"course": "harbour-pilotage"}),
        (2, SEARCH, {"query": "The rule of twelfths"}),
    ]
    assert (turn["degraded"], last_words(turn)) == ([], FOUND)
    assert answered(events) == [[], [(OUTLINE, False)], [(SEARCH, False)]]
    assert [round["stop_reason"] for round in turn["rounds"]] == ["tool_use", "tool_use", "end_turn"]
    assert len(model.requests) == 3
    model.check_prefixes()


async def test_two_courses_are_looked_up_in_one_round(student: Client, model: Model) -> None:
    turn, events = await whole(student, await student.say(await student.chat(), "Compare harbour-pilotage and knots."))
    assert calls_of(turn) == [(1, OUTLINE, {"course": "harbour-pilotage"}), (1, OUTLINE, {"course": "knots"})]
    assert last_words(turn) == "harbour-pilotage has 4 lessons. knots has 2 lessons."
    assert answered(events)[0] == []
    assert sorted(answered(events)[1]) == [(OUTLINE, False), (OUTLINE, False)]
    assert told_of_results(model) == [["toolu_1_1", "toolu_1_2"]]
    model.check_prefixes()


async def test_a_course_that_does_not_exist_is_an_error_with_a_remedy_for_the_model(
    student: Client, model: Model
) -> None:
    turn, events = await whole(student, await student.say(await student.chat(), SAME_TOPIC.format("harbor-pilots")))
    (told, is_error), *_ = results_of(turn)
    assert is_error
    assert told == ("There is no course 'harbor-pilots'. The courses are: harbour-pilotage, knots, reading-the-tide.")
    assert [tool for _, tool, _ in calls_of(turn)] == [OUTLINE, OUTLINE, SEARCH]
    assert answered(events) == [[], [(OUTLINE, True)], [(OUTLINE, False)], [(SEARCH, False)]]
    assert (turn["degraded"], last_words(turn)) == ([], FOUND)
    model.check_prefixes()


async def test_the_next_question_is_asked_of_a_model_that_knows_the_first(student: Client, model: Model) -> None:
    chat = await student.chat()
    await whole(student, await student.say(chat, SAME_TOPIC.format("harbour-pilotage")))
    turn, _ = await whole(student, await student.say(chat, "Compare knots and reading-the-tide."))
    assert last_words(turn) == "knots has 2 lessons. reading-the-tide has 3 lessons."
    assert len(model.requests) == 5
    model.check_prefixes()
