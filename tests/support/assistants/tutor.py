"""The model of the course assistant, which chooses its next call by the results of its tools."""

import difflib
import re
from collections.abc import Iterable

from tests.support.assistants.model import Answered, Conversation, Said, Thought, Use


def tutor(conversation: Conversation) -> Iterable[Said]:
    question, answered = conversation.question, conversation.answered
    if pair := re.fullmatch(r"Compare (\S+) and (\S+)\.", question):
        return _compare(answered, *pair.groups())
    asked = re.fullmatch(r"Find a course that discusses the same topic as lesson (\d+) of (\S+)\.", question)
    assert asked is not None, question
    return _same_topic(answered, int(asked[1]), asked[2])


def _compare(answered: tuple[Answered, ...], one: str, other: str) -> Iterable[Said]:
    if not answered:
        return [Thought("I need both outlines."), _outline(one), _outline(other)]
    return [" ".join(f"{each.data['course']} has {len(each.data['lessons'])} lessons." for each in answered)]


def _same_topic(answered: tuple[Answered, ...], lesson: int, course: str) -> Iterable[Said]:
    if not answered:
        return [Thought(f"What is lesson {lesson} about?"), "Let me look at that course.", _outline(course)]
    last = answered[-1]
    if last.is_error:
        return _meant(last, course)
    if last.name == "get_course_outline":
        titles = {each["number"]: each["title"] for each in last.data["lessons"]}
        return [f"It is about “{titles[lesson]}”.", Use("search_course_content", {"query": titles[lesson]})]
    here = [each.data["course"] for each in answered if each.name == "get_course_outline" and not each.is_error]
    elsewhere = [hit for hit in last.data if hit["course"] not in here]
    if not elsewhere:
        return ["No other course discusses it."]
    return [f"Lesson {elsewhere[0]['lesson']} of {elsewhere[0]['course']} discusses the same topic."]


def _meant(failed: Answered, course: str) -> Iterable[Said]:
    """Suggests a similar course. The model knows the existing courses only from the text of the error."""
    names = failed.text.partition("The courses are: ")[2].rstrip(".").split(", ")
    close = difflib.get_close_matches(course, names, n=1)
    return (
        [f"There is no {course}; {close[0]} may be meant.", _outline(close[0])] if close else ["I know no such course."]
    )


def _outline(course: str) -> Use:
    return Use("get_course_outline", {"course": course})
