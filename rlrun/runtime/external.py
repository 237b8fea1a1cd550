"""Servers that somebody else has started: looked at before anything else starts, watched, and left running."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from rlrun.backends.base import EngineAddress
from rlrun.errors import Problem, RlrunError
from rlrun.plan.groups import POLICY
from rlrun.plan.types import ExternalPlan, RunPlan

PROBE_S = 1.0
SILENT_S = 60.0
"""A server that answers nothing for so long is gone, also when its port still takes connections."""
REFUSALS = 3
"""Probes in a row that found nobody listening."""


@dataclass(frozen=True)
class Attached:
    """`policy` gets weights and requests; `frozen` only requests: the servers of each model, by name."""

    policy: tuple[EngineAddress, ...] = ()
    frozen: dict[str, tuple[EngineAddress, ...]] = field(default_factory=dict)

    @property
    def all(self) -> list[EngineAddress]:
        return [*self.policy, *(address for own in self.frozen.values() for address in own)]


def attach(plan: RunPlan, model_dir: str) -> Attached:
    """Waits for every external server and compares it with the plan. Raises RlrunError with all that is wrong with any
    of them; nothing was changed in them then."""
    external = plan.deployment.external
    if not external:
        return Attached()
    first = len(plan.engines)
    with ThreadPoolExecutor(max_workers=len(external)) as pool:
        found = list(pool.map(lambda pair: _look(plan, model_dir, first + pair[0], pair[1]), enumerate(external)))
    problems = [problem for _, own in found for problem in own]
    if problems:
        raise RlrunError(problems)
    by_model: dict[str, list[EngineAddress]] = {}
    for engine, (address, _) in zip(external, found, strict=True):
        by_model.setdefault(engine.model, []).append(address)
    policy = tuple(by_model.pop(POLICY, ()))
    return Attached(policy, {name: tuple(own) for name, own in by_model.items()})


def _look(plan: RunPlan, model_dir: str, index: int, engine: ExternalPlan) -> tuple[EngineAddress, list[Problem]]:
    from rlrun.backends.sglang.external import Unreachable, differences, look_at

    key = f"placement.rollout.external.{index - len(plan.engines)}.url"
    try:
        found = look_at(engine.url, plan.timeouts.start_s)
    except Unreachable as e:
        hint = f"start it, correct {key}, or raise timeouts.start_s"
        problem = Problem("external-unreachable", f"{engine.url} cannot be attached: {e}", hint=hint)
        return EngineAddress(index, engine.url, 1, external=True), [problem]
    differ = differences(plan, found, model_dir) if engine.model == POLICY else []
    problems = []
    if differ:
        what = "\n".join(f"  - {text}" for text in differ)
        summary = f"{engine.url} is not what the plan takes for an engine of the policy:\n{what}"
        problems.append(Problem("external-mismatch", summary, hint=f"start it otherwise, or set {key} to another one"))
    return EngineAddress(index, engine.url, found.tp, external=True), problems


class ExternalActor:
    """Looks at one external server from time to time."""

    def __init__(self, url: str):
        self._url = url

    def wait_gone(self) -> str:
        """Returns, with the reason, once the server does not answer any more. A server that is busy may be slow: only
        one that nobody listens at is gone at once."""
        answered, refused = time.monotonic(), 0
        while True:
            reason = self._probe()
            if reason is None:
                answered, refused = time.monotonic(), 0
            else:
                refused = refused + 1 if reason != "no answer" else 0
                silent = time.monotonic() - answered
                if refused >= REFUSALS or silent > SILENT_S:
                    return f"it does not answer any more ({reason}, for {silent:.0f} s)"
            time.sleep(PROBE_S / REFUSALS if refused else PROBE_S)

    def _probe(self) -> str | None:
        """Why there was no answer; an error page is one."""
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=10):
                return None
        except urllib.error.HTTPError:
            return None
        except TimeoutError:
            return "no answer"
        except OSError as e:
            reason = getattr(e, "reason", e)
            return "no answer" if isinstance(reason, TimeoutError) else str(reason)
