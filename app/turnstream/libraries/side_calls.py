"""Makes model calls beside a turn, with a model that the operator chooses: one prompt, one text as its answer."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

from turnstream.domain.blocks import Block
from turnstream.domain.charges import Charge, charge_of_request
from turnstream.domain.compaction import tokens_of
from turnstream.domain.errors import TransientError
from turnstream.domain.kinds import TEXT
from turnstream.domain.limits import BUDGET
from turnstream.domain.plans import SPENT, Plans, rate_sentence
from turnstream.domain.rounds import Round, billed_tokens
from turnstream.domain.turns import Turn
from turnstream.engine.model_route import ModelPolicy
from turnstream.engine.model_spans import model_call
from turnstream.engine.recorder import to_the_end
from turnstream.engine.spending import most_cost
from turnstream.extension import Context
from turnstream.kit.ids import new_id
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.provider import Message, ModelRequest, Provider
from turnstream.storage.database import retry_while_unavailable
from turnstream.storage.owners.accounts import Accounts, CallPlace
from turnstream.storage.owners.charges import Charges

_TIMEOUT = 60.0  # seconds
_MAX_TOKENS = 2_000


@dataclass(frozen=True, slots=True)
class SideAnswer:
    text: str
    usage: Mapping[str, Any]
    cost: float | None


@dataclass(frozen=True, slots=True)
class SideCalls:
    """Makes model calls beside the turns of all owners. Each call is charged to the owner of its turn."""

    charges: Charges
    accounts: Accounts
    plans: Plans
    policy: ModelPolicy

    @classmethod
    def of(cls, context: Context) -> Self:
        """Creates the side calls of a server."""
        return cls(Charges(context.database), Accounts(context.database), context.plans, context.model_policy)

    async def ask(
        self,
        kind: Literal["summary", "title", "guard"],
        owner: str,
        turn: Turn,
        provider: Provider,
        model: str,
        prompt: str,
        max_tokens: int = _MAX_TOKENS,
    ) -> SideAnswer:
        """Returns the answer of `model`, without retries. Raises ProviderError and TimeoutError. Raises TransientError
        if the answer is empty or truncated, or if a limit of the owner's plan is reached.
        """
        call = str(new_id())
        assert turn.request is not None
        plan = self.plans.of(owner, turn.request.plan)
        if limited := plan.has(*SPENT):
            prices, tokens = self.policy.prices(model), tokens_of(len(prompt))
            most = most_cost(prices, 2 * tokens, max_tokens)
            request_alone = charge_of_request(kind, call, model, tokens, prices)
            reserved = (owner, plan, CallPlace.of(turn), request_alone, 2 * tokens + max_tokens, most)
            if refusal := await retry_while_unavailable(lambda: self.accounts.reserve(*reserved)):
                raise TransientError(BUDGET, rate_sentence(refusal.reached))
        request = ModelRequest(
            model, (Message("user", (Block(0, 0, 0, TEXT, prompt),)),), params={"max_tokens": max_tokens}
        )
        message, blocks, written = Accumulator(1, 1, 0), list[Block](), 0
        about = {"gen_ai__conversation__id": str(turn.chat_id), "turnstream__beside": kind}
        try:
            with model_call(provider.name, self.policy.label(model), request, **about) as span:
                async with asyncio.timeout(_TIMEOUT), aclosing(provider.stream(request)) as stream:
                    async for parts in stream:
                        for change in message.feed(parts):
                            if isinstance(change, str):
                                written += len(change)
                            elif isinstance(change, Block):
                                blocks.append(change)
                span.answered(message.stop_reason, message.usage, blocks, message.request_id)
        finally:
            cut_off = None if message.stop_reason is not None else tokens_of(written)
            spent = Round(1, 1, usage=message.usage, estimated_tokens=cut_off).spent
            cost = self.policy.cost(model, spent)
            if message.started:
                charge = Charge(kind, call, model, billed_tokens(spent), cost)
                add = partial(self.charges.add, owner, turn.chat_id, turn.id, charge)
                await to_the_end(retry_while_unavailable(add))
            elif limited:
                await to_the_end(retry_while_unavailable(lambda: self.accounts.release_call(turn.id, call)))
        text = "\n\n".join(block.text for block in blocks if block.type == TEXT).strip()
        if not text or message.stop_reason not in {None, "end_turn", "stop_sequence"}:
            raise TransientError("no_summary", f"The model {model} gave no whole answer ({message.stop_reason}).")
        return SideAnswer(text, message.usage, cost)
