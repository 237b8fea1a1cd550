"""Nothing waits without a deadline, and nothing waits for the dead.

`Supervisor` holds one long call to each server's owner that returns when the server is gone, and knows which part
died. Every wait of the driver (`wait_all` on Ray calls, `guard` on the rollout's coroutine) looks at it, so a killed
engine ends the wait within a second, with the engine's name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rlrun.errors import RlrunError, RunFailed

T = TypeVar("T")

POLL_S = 0.25
SETTLE_S = 2.0
"""After a first failure, how long to listen for the death that caused it: peers of a killed rank fail first."""


def _unwrap(error: BaseException) -> BaseException:
    """The user's error inside Ray's wrapper."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, RlrunError | RunFailed) else error


class Supervisor:
    """Watches the owners of servers. `parts` are added with a Ray reference that resolves when the part is gone."""

    def __init__(self) -> None:
        self._watched: dict[Any, str] = {}
        self._stopping = False

    def watch(self, part: str, exit_ref: Any) -> None:
        self._watched[exit_ref] = part

    def stopping(self) -> None:
        """From here on, exits are wanted."""
        self._stopping = True

    def check(self) -> None:
        """Raises RunFailed naming a watched part that is gone."""
        import ray

        if self._stopping or not self._watched:
            return
        gone, _ = ray.wait(list(self._watched), num_returns=1, timeout=0)
        for ref in gone:
            part = self._watched.pop(ref)
            try:
                reason = ray.get(ref)
            except Exception as e:
                reason = f"its owner is gone ({type(e).__name__})"
            ours = not part.startswith("external ")
            raise RunFailed(part, f"died: {reason}", f"its log is {'in the run folder' if ours else 'where it runs'}")

    def wait_all(self, calls: Sequence[tuple[str, Any]], what: str, deadline_s: float) -> list[Any]:
        """Results of the Ray calls [(part, reference)], in order.

        Raises RunFailed when a part dies, raises, or is not done in `deadline_s` seconds.
        """
        import ray

        pending = {ref: part for part, ref in calls}
        results: dict[Any, Any] = {}
        end = time.monotonic() + deadline_s
        while pending:
            self.check()
            done, _ = ray.wait(list(pending), num_returns=1, timeout=POLL_S)
            for ref in done:
                part = pending.pop(ref)
                try:
                    results[ref] = ray.get(ref)
                except Exception as e:
                    raise self._blame(part, e, pending, what) from e
            if pending and time.monotonic() > end:
                late = ", ".join(sorted(set(pending.values())))
                raise RunFailed(
                    late, f"did not finish {what} within {deadline_s:g} s", "raise timeouts.* if it was only slow"
                )
        return [results[ref] for _, ref in calls]

    def _blame(self, part: str, error: Exception, pending: dict[Any, str], what: str) -> Exception:
        """The part that really died: a collective's survivors raise first when a peer is killed."""
        import ray
        from ray.exceptions import RayActorError

        failures = [(part, error)]
        end = time.monotonic() + SETTLE_S
        while pending and not isinstance(failures[-1][1], RayActorError) and time.monotonic() < end:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=POLL_S)
            for ref in done:
                other = pending.pop(ref)
                try:
                    ray.get(ref)
                except Exception as e:
                    failures.append((other, e))
        self.check()
        dead = [p for p, e in failures if isinstance(e, RayActorError)]
        if dead:
            return RunFailed(dead[0], f"died during {what}: its process is gone (killed, or out of memory)")
        cause = _unwrap(failures[0][1])
        if isinstance(cause, RlrunError | RunFailed):
            return cause
        lines = [line for line in str(cause).strip().splitlines() if line.strip()]
        return RunFailed(failures[0][0], f"failed during {what}: {lines[-1] if lines else type(cause).__name__}")

    async def guard(self, work: Coroutine[Any, Any, T], what: str, deadline_s: float) -> T:
        """The coroutine's result, unless a watched part dies or the deadline passes first."""
        task = asyncio.ensure_future(work)
        end = time.monotonic() + deadline_s
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=POLL_S)
                self.check()
                if done:
                    return await self._settled(task)
                if time.monotonic() > end:
                    raise RunFailed(
                        what, f"not finished within {deadline_s:g} s", "raise timeouts.* if it was only slow"
                    )
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _settled(self, task: asyncio.Future[T]) -> T:
        """A request can fail a moment before its server's exit is seen: name the server then, not the request."""
        if task.exception() is not None:
            end = time.monotonic() + SETTLE_S
            while time.monotonic() < end:
                self.check()
                await asyncio.sleep(POLL_S)
        return task.result()
