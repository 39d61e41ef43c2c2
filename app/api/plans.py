"""The plans of owners, as their requests need them."""

from app.domain.identity import Identity
from app.domain.plans import Plan, Plans

_MOST_REMEMBERED = 10_000


class OwnerPlans:
    """`note` is called with the identity of each request: the plan that its credentials name holds from then on."""

    def __init__(self, plans: Plans) -> None:
        self.plans = plans
        self._names: dict[str, str] = {}

    def note(self, identity: Identity) -> None:
        self._names.pop(identity.owner, None)
        if identity.plan is not None:
            self._names[identity.owner] = identity.plan
            if len(self._names) > _MOST_REMEMBERED:
                del self._names[next(iter(self._names))]

    def name_of(self, owner: str) -> str | None:
        return self._names.get(owner)

    def of(self, owner: str) -> Plan:
        return self.plans.of(owner, self._names.get(owner))
