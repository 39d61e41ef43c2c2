"""The plans of owners, as their requests need them."""

from dataclasses import dataclass

from turnstream.api.caller import CALLER
from turnstream.domain.plans import Plan, Plans


@dataclass(frozen=True, slots=True)
class OwnerPlans:
    plans: Plans

    def of(self, owner: str) -> Plan:
        """The plan of the owner by the credential of the request."""
        return self.plans.of(owner, CALLER.get().plan)
