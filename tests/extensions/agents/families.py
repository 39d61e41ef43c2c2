"""A family of agents with three levels: leads run in parallel, and each lead runs its scouts one after another."""

import json


def calling(name: str, task: str) -> str:
    return f"/call {name} {json.dumps({'task': task})}"


def family(leads: int, scouts: int, words: int) -> str:
    """Returns the message that starts the family. A lead calls one scout per round, so an interrupted round cannot call
    a scout twice.
    """
    tasks = [
        [calling("scout", f"/say {_said(lead, scout, words)}") for scout in range(scouts)] for lead in range(leads)
    ]
    return "\n".join(["/parallel", *(calling("lead", "\n".join(each)) for each in tasks)])


def report(lead: int, scouts: int, words: int) -> str:
    """Returns the expected answer of a lead, which contains the text of each scout once."""
    return "\n\n".join(f"scout returned:\n\n> {_said(lead, scout, words)}" for scout in range(scouts))


def _said(lead: int, scout: int, words: int) -> str:
    """Returns words that are unique for each scout, because repeated words would hide a lost or repeated part."""
    return " ".join(f"{lead}.{scout}.{word}" for word in range(words))
