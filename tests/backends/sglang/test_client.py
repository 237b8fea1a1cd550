"""The client against a small HTTP server that answers as SGLang does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rlrun.backends.base import EngineAddress, GenerateRequest
from rlrun.backends.sglang import client as client_module
from rlrun.backends.sglang.client import SglangClient, to_completion, to_version
from rlrun.errors import RunFailed

PROMPT = (1, 4, 13, 1)


def answer(ids=(5, 6, 2), logprobs=(-0.5, -1.5, -0.25), reason=None, version="3") -> dict:
    return {
        "text": "12",
        "output_ids": list(ids),
        "meta_info": {
            "finish_reason": reason or {"type": "stop", "matched": 2},
            "output_token_logprobs": [[lp, i, None] for lp, i in zip(logprobs, ids, strict=True)],
            "weight_version": version,
            "cached_tokens": 0,
            "e2e_latency": 0.1,
        },
    }


class FakeServer:
    """Answers every prompt; token 100 + seed is sampled, so that order and seeds can be checked. `failures` are the
    first answers given instead: HTTP statuses, or "hang". Prompts are scored as `scored`: pairs of log-prob and id."""

    def __init__(self, failures=(), scored=()):
        self.bodies: list[dict] = []
        self.failures = list(failures)
        self.scored = [[logprob, token, None] for logprob, token in scored]

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if self.failures:
            failure = self.failures.pop(0)
            if failure == "hang":
                await asyncio.sleep(30)
            return web.json_response({"error": {"message": "no room"}}, status=failure)
        single = isinstance(body["input_ids"][0], int)
        params = body["sampling_params"]
        if isinstance(params, dict):
            params = [params] * (1 if single else len(body["input_ids"]))
        answers = [answer((100 + p.get("sampling_seed", 0),), (-1.0,)) for p in params]
        if self.scored:
            answers[0]["meta_info"]["input_token_logprobs"] = self.scored
        return web.json_response(answers[0] if single else answers)

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": "7"})


@asynccontextmanager
async def serve(server: FakeServer):
    app = web.Application()
    app.router.add_post("/generate", server.generate)
    app.router.add_get("/model_info", server.model_info)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()


def run(plan, servers: list[FakeServer], use: Callable[[SglangClient], Awaitable], router: bool = False):
    async def main():
        async with serve(servers[0]) as first, serve(servers[-1]) as last:
            engines = [EngineAddress(0, first, 1), EngineAddress(1, last, 1)][: len(servers)]
            backend = SglangClient(engines, first if router else None, plan.rollout)
            try:
                return await use(backend)
            finally:
                await backend.close()

    return asyncio.run(main())


def request(seeds=(7, 8, 9), **changes) -> GenerateRequest:
    return GenerateRequest(
        **{**{"token_ids": PROMPT, "seeds": seeds, "temperature": 0.7, "max_new_tokens": 5}, **changes}
    )


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch):
    monkeypatch.setattr(client_module, "BACKOFF_S", 0.001)


def test_a_group_is_one_request_with_a_seed_for_each_sample(make_plan):
    server = FakeServer()
    completions = run(make_plan(), [server], lambda c: c.generate(request(stop=("\n",))))
    assert [c.token_ids for c in completions] == [(107,), (108,), (109,)]
    (body,) = server.bodies
    assert body["input_ids"] == [list(PROMPT)] * 3
    assert [p["sampling_seed"] for p in body["sampling_params"]] == [7, 8, 9]
    assert body["return_logprob"] is True
    for params in body["sampling_params"]:
        assert params["temperature"] == 0.7
        assert params["max_new_tokens"] == 5
        assert params["stop"] == ["\n"]
        assert (params["top_p"], params["top_k"], params["min_p"]) == (1.0, -1, 0.0)  # not the checkpoint's


def test_an_evaluation_may_cut_the_distribution(make_plan):
    server = FakeServer()
    run(make_plan(), [server], lambda c: c.generate(request(top_p=0.9, top_k=20)))
    (body,) = server.bodies
    assert [(p["top_p"], p["top_k"], p["min_p"]) for p in body["sampling_params"]] == [(0.9, 20, 0.0)] * 3


def test_through_a_router_a_seeded_group_is_one_request_a_sample(make_plan):
    server = FakeServer()
    completions = run(make_plan(), [server], lambda c: c.generate(request()), router=True)
    assert [c.token_ids for c in completions] == [(107,), (108,), (109,)]
    assert [body["input_ids"] for body in server.bodies] == [list(PROMPT)] * 3


@pytest.mark.parametrize("router", [False, True])
def test_an_unseeded_group_is_one_request_with_one_set_of_parameters(make_plan, router):
    server = FakeServer()
    run(make_plan(seeded=False), [server], lambda c: c.generate(request((None, None))), router=router)
    (body,) = server.bodies
    assert body["input_ids"] == [list(PROMPT)] * 2
    assert "sampling_seed" not in body["sampling_params"]


def test_seeds_that_the_engine_would_ignore_are_our_mistake(make_plan):
    server = FakeServer()
    for seeded, seeds in ((False, (1, 2)), (True, (None, None)), (True, (1, -1)), (True, (2**63,))):
        with pytest.raises(AssertionError, match="seed"):
            run(make_plan(seeded=seeded), [server], lambda c, seeds=seeds: c.generate(request(seeds)))
    assert not server.bodies
    run(make_plan(), [server], lambda c: c.generate(request((None,), temperature=0.0)))  # greedy needs none


@pytest.mark.parametrize("failure", [500, 503, 429, "hang"])
def test_a_passing_failure_is_retried(make_plan, failure):
    server = FakeServer([failure] * 2)
    plan = make_plan(rollout={"max_retries": 2, "request_timeout_s": 0.3})
    completions = run(plan, [server], lambda c: c.generate(request()))
    assert len(completions) == 3
    assert len(server.bodies) == 3


def test_a_lasting_failure_names_the_engine_and_the_last_reason(make_plan):
    server = FakeServer([503] * 9)
    plan = make_plan(rollout={"max_retries": 1})
    with pytest.raises(RunFailed) as error:
        run(plan, [server], lambda c: c.generate(request()))
    assert error.value.part == "engine 0"
    assert "failed 2 times, last with: HTTP 503" in error.value.summary
    assert "no room" in error.value.summary
    assert len(server.bodies) == 2


def test_a_timeout_is_reported_in_seconds(make_plan):
    plan = make_plan(rollout={"max_retries": 0, "request_timeout_s": 0.2})
    with pytest.raises(RunFailed, match=r"no answer in 0\.2 s"):
        run(plan, [FakeServer(["hang"])], lambda c: c.generate(request()))


def test_a_dead_engine_is_named(make_plan):
    async def main():
        async with serve(FakeServer()) as url:
            pass  # gone by now
        backend = SglangClient([EngineAddress(4, url, 1)], None, make_plan(rollout={"max_retries": 1}).rollout)
        try:
            await backend.generate(request())
        finally:
            await backend.close()

    with pytest.raises(RunFailed, match=r"engine 4: POST /generate to .* failed 2 times.*ClientConnectorError"):
        asyncio.run(main())


def test_a_refused_request_is_not_retried(make_plan):
    server = FakeServer([400])
    with pytest.raises(RunFailed, match=r"engine 0: refused POST .* HTTP 400: .*no room"):
        run(make_plan(), [server], lambda c: c.generate(request()))
    assert len(server.bodies) == 1


def test_without_a_router_a_retry_goes_to_the_next_engine(make_plan):
    servers = [FakeServer([500] * 9), FakeServer()]
    completions = run(make_plan(2), servers, lambda c: c.generate(request()))
    assert len(completions) == 3
    assert [len(s.bodies) for s in servers] == [1, 1]


@pytest.mark.parametrize("last", [13, 0])
def test_a_score_has_the_tokens_sent_except_that_sglang_reports_the_vocabularys_last_as_zero(make_plan, last):
    scored = [(None, 1), (-0.5, last), (-1.5, 0), (-2.5, last)]
    tokens = [1, 13, 0, 13]
    assert run(make_plan(), [FakeServer(scored=scored)], lambda c: c.score(tokens, 0)) == [-0.5, -1.5, -2.5]


@pytest.mark.parametrize("reported", [[1, 13, 0, 0], [1, 0, 0, 13], [0, 13, 0, 13], [1, 13, 0]])
def test_a_score_of_other_tokens_is_refused(make_plan, reported):
    server = FakeServer(scored=[(-1.0, token) for token in reported])
    with pytest.raises(RunFailed, match="scored other tokens"):
        run(make_plan(), [server], lambda c: c.score([1, 13, 0, 13], 0))


def test_versions_ask_every_engine(make_plan):
    assert run(make_plan(2), [FakeServer(), FakeServer()], lambda c: c.versions()) == [7, 7]


def test_the_stop_token_and_its_logprob_are_kept():
    completion = to_completion(answer())
    assert completion.token_ids == (5, 6, 2)
    assert completion.logprobs == (-0.5, -1.5, -0.25)
    assert (completion.finish_reason, completion.policy_version, completion.text) == ("stop", 3, "12")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ({"type": "stop", "matched": "\n"}, "stop"),
        ({"type": "length", "length": 3}, "length"),
        ({"type": "abort", "message": "Aborted"}, "abort"),
    ],
)
def test_finish_reasons(reason, expected):
    assert to_completion(answer(reason=reason)).finish_reason == expected


def test_an_unknown_finish_reason_is_not_guessed():
    with pytest.raises(RunFailed, match="unknown finish reason"):
        to_completion(answer(reason={"type": "tired"}))


def test_ids_without_their_logprobs_are_refused():
    broken = answer()
    broken["meta_info"]["output_token_logprobs"].pop()
    with pytest.raises(RunFailed, match="2 log-probs do not match 3 sampled ids"):
        to_completion(broken)


def test_a_version_that_we_did_not_set_is_refused():
    assert to_version("12") == 12
    with pytest.raises(RunFailed, match="weight version 'default'"):
        to_version("default")
