"""A family of three levels: leads at once, each with scouts one after the other."""

import json


def calling(name: str, task: str) -> str:
    return f"/call {name} {json.dumps({'task': task})}"


def family(leads: int, scouts: int, words: int) -> str:
    """The message that starts it. A lead calls its scouts in turn, so that no round that is cut calls twice."""
    tasks = [
        [calling("scout", f"/say {_said(lead, scout, words)}") for scout in range(scouts)] for lead in range(leads)
    ]
    return "\n".join(["/parallel", *(calling("lead", "\n".join(each)) for each in tasks)])


def report(lead: int, scouts: int, words: int) -> str:
    """The answer of a lead: what each of its scouts has said, once."""
    return "\n\n".join(f"scout returned:\n\n> {_said(lead, scout, words)}" for scout in range(scouts))


def _said(lead: int, scout: int, words: int) -> str:
    """Words that no other scout says: a text of equal parts does not show whether one of them is lost or repeated."""
    return " ".join(f"{lead}.{scout}.{word}" for word in range(words))
