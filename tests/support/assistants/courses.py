"""The tools of a course assistant, and its courses. A server loads `toolset` with TURNSTREAM_TOOLSET."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from turnstream.extensions.documents.store import Documents
from turnstream.storage.database import connect
from turnstream.tools.tool import Tool, ToolContext, ToolError, tool, tools_of

FOLDER = "courses/"

# Lesson 4 of the pilot's course and lesson 2 of the course on tides have the same subject.
COURSES = {
    "harbour-pilotage": {
        "Charts and depths": "A chart tells depths below the lowest tide that is to be expected.",
        "Buoys and lights": "Green to starboard, red to port, when you come from the sea.",
        "Coming alongside": "Against wind and stream the boat is slow over the ground, and that is what you want.",
        "The rule of twelfths": "The tide rises by one, two, three, three, two, one twelfths of its range.",
    },
    "reading-the-tide": {
        "Why there are tides": "The moon pulls, the sun helps or hinders, and the coast has the last word.",
        "The twelfths, a rule of thumb": "Divide the range by twelve and count the hours: the rule of twelfths.",
        "Springs and neaps": "After new and full moon the range is large.",
    },
    "knots": {
        "The bowline": "A loop that does not slip.",
        "The sheet bend": "Two ropes that are not equally thick.",
    },
}


@dataclass(frozen=True)
class Lesson:
    number: int
    title: str


@dataclass(frozen=True)
class Outline:
    course: str
    lessons: list[Lesson]


@dataclass(frozen=True)
class Found:
    course: str
    lesson: int
    excerpt: str


class CourseTools:
    """The tools. A lesson is a document such as `courses/NAME/4-the-rule-of-twelfths.md`, whose first line is its
    title.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    @tool(read_only=True)
    async def get_course_outline(self, context: ToolContext, course: Annotated[str, "its name"]) -> Outline:
        """The lessons of a course, in order, with their numbers and titles."""
        lessons = []
        for document in await self._documents.tree(context.owner, f"{FOLDER}{course}/"):
            content = await self._documents.read(context.owner, document.path) or ""
            lessons.append(Lesson(_number(document.path), content.splitlines()[0].removeprefix("# ")))
        if not lessons:
            raise ToolError(f"There is no course {course!r}. The courses are: {', '.join(await self._names(context))}.")
        return Outline(course, lessons)

    @tool(read_only=True)
    async def search_course_content(self, context: ToolContext, query: str) -> list[Found]:
        """Lessons of all courses that are about something, the best first."""
        hits = await self._documents.search(context.owner, query, 10)
        return [
            Found(hit.path.split("/")[1], _number(hit.path), hit.snippet) for hit in hits if hit.path.startswith(FOLDER)
        ]

    async def _names(self, context: ToolContext) -> list[str]:
        return sorted({document.path.split("/")[1] for document in await self._documents.tree(context.owner, FOLDER)})


def _number(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])


@asynccontextmanager
async def toolset() -> AsyncIterator[list[Tool]]:
    async with connect(os.environ["DATABASE_URL"], size=2) as database:
        yield tools_of(CourseTools(Documents(database)))


def lessons() -> dict[str, str]:
    """Returns every document with its path."""
    return {
        f"{FOLDER}{course}/{number}-{title.lower().replace(',', '').replace(' ', '-')}.md": f"# {title}\n\n{text}\n"
        for course, titles in COURSES.items()
        for number, (title, text) in enumerate(titles.items(), 1)
    }
