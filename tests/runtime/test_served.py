"""Frozen models and external servers between the plan and the actors, without Ray or servers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlrun.backends.base import EngineAddress
from rlrun.backends.sglang import external as looking
from rlrun.errors import Problem, RlrunError
from rlrun.plan.build import load_plan
from rlrun.plan.groups import POLICY
from rlrun.runtime import fleet, preflight
from rlrun.runtime.cluster import Cluster
from rlrun.runtime.external import Attached, attach
from rlrun.runtime.supervise import Supervisor

GRADED = "reward.function=rlrun.agents.judges:graded"
JUDGE = "{type: regular, gpus: 1, model: judge}"
ON_CPU = ["+experiment=quickstart", "placement.gpus_per_node=3", GRADED]
APART = [*ON_CPU, "placement.mode=disaggregated", "weight_sync.transport=distributed", "placement.rollout.gpus=2"]


def plan_of(words, *, judges=1, path="org/judge", external=(), more=""):
    groups = ", ".join(["{type: regular, gpus: 1}", *[JUDGE] * judges])
    listed = ", ".join(f"{{url: '{url}', model: {model}}}" for url, model in external)
    return load_plan(
        [
            *words,
            f"rollout.models={{judge: {{path: {path}{more}}}}}",
            f"placement.rollout.server_groups=[{groups}]",
            f"placement.rollout.external=[{listed}]",
        ]
    )


def address(index, **more):
    return EngineAddress(index, f"http://127.0.0.1:{index}", 1, **more)


def cluster_of(plan, attached=None):
    cluster = Cluster(plan, "/policy", "/tmp/run", print, {"judge": "/judge"}, attached)
    cluster.fleet.addresses = [address(engine.index) for engine in plan.engines]
    return cluster


def test_weights_and_requests_of_the_policy_go_to_its_engines_alone():
    apart = (address(7, external=True),)
    cluster = cluster_of(plan_of(APART), Attached(apart))
    assert [engine.url for engine in cluster.engines] == ["http://127.0.0.1:0", "http://127.0.0.1:7"]
    assert [engine.name for engine in cluster.engines] == ["engine 0", "external engine http://127.0.0.1:7"]


def test_a_frozen_model_is_reached_at_its_server_or_its_router():
    plan = plan_of(APART)
    cluster = cluster_of(plan)
    judge = cluster.served()["judge"]
    assert (judge.url, judge.path) == ("http://127.0.0.1:1", "org/judge")
    assert (judge.timeout_s, judge.max_retries) == (plan.rollout.request_timeout_s, plan.rollout.max_retries)
    cluster._router_urls = {POLICY: "http://127.0.0.1:8", "judge": "http://127.0.0.1:9"}
    assert cluster.served()["judge"].url == "http://127.0.0.1:9"
    assert cluster.router_url == "http://127.0.0.1:8"


def test_a_frozen_model_on_an_external_server_needs_none_of_ours():
    words = ["placement.mode=disaggregated", "weight_sync.transport=distributed"]
    plan = plan_of([*ON_CPU, *words], judges=0, external=[("http://node7:30000", "judge")])
    attached = Attached(frozen={"judge": (EngineAddress(1, "http://node7:30000", 1, external=True),)})
    assert cluster_of(plan, attached).served()["judge"].url == "http://node7:30000"
    assert [engine.index for engine in cluster_of(plan, attached).engines] == [0]


def test_a_frozen_model_takes_its_weights_back_and_the_policy_waits_for_a_push(monkeypatch):
    """On slots of their own engines keep what they have."""
    turns = ["rollout.offload=true", "placement.trainer.gpus=2", "placement.rollout.gpus=3"]
    plan = plan_of([*ON_CPU, *turns], judges=2)  # policy and one judge beside the trainer's two ranks, one judge alone
    assert [engine.offload for engine in plan.engines] == [True, True, False]
    said = []
    engines = fleet.Fleet(plan, {}, "", Supervisor())
    engines.actors = [Told(index, said) for index in range(3)]
    monkeypatch.setattr(engines._supervisor, "wait_all", lambda calls, what, deadline: [])
    engines.release()
    assert said == [(0, "release_memory"), (1, "release_memory")]
    said.clear()
    engines.resume_weights()
    assert said == [(0, "resume_weights")]
    said.clear()
    engines.resume_cache()
    assert said == [(1, "resume_weights"), (0, "resume_cache"), (1, "resume_cache")]


class Told:
    """An actor that writes down what it is asked."""

    def __init__(self, index, said):
        self._index, self._said = index, said

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda deadline: self._said.append((self._index, name)))


def test_each_frozen_model_is_staged_and_all_that_cannot_be_had_are_told(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (here / "config.json").write_text("{}")
    plan = plan_of(APART, path=here)
    assert preflight.stage_served(plan) == {"judge": str(here)}

    def gone(hub_id, key):
        raise RlrunError(Problem("model-not-found", f"{hub_id} is not there", hint=f"set {key}"))

    monkeypatch.setattr(preflight, "_fetch", gone)
    [judge] = plan_of(APART).deployment.models
    two = replace(plan, deployment=replace(plan.deployment, models=(judge, replace(judge, name="jury"))))
    with pytest.raises(RlrunError) as e:
        preflight.stage_served(two)
    assert [p.hint for p in e.value.problems] == ["set rollout.models.judge.path", "set rollout.models.jury.path"]


def test_a_context_is_compared_when_a_model_from_the_hub_is_here(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    monkeypatch.setattr(preflight, "_fetch", lambda hub_id, key: str(tmp_path))
    assert preflight.stage_served(plan_of(APART, more=", context_length: 512")) == {"judge": str(tmp_path)}
    with pytest.raises(RlrunError) as e:
        preflight.stage_served(plan_of(APART, more=", context_length: 513"))
    [problem] = e.value.problems
    assert (problem.code, problem.hint) == ("served-context", "set rollout.models.judge.context_length to 512")


SERVERS = [("http://a:1", POLICY), ("http://b:2", "judge"), ("http://c:3", POLICY)]


def attached_plan():
    return plan_of(APART, external=SERVERS)


def test_external_servers_come_after_ours_with_the_size_that_they_report(monkeypatch):
    monkeypatch.setattr(looking, "look_at", lambda url, deadline: looking.Found({"tp_size": 2}, {}))
    monkeypatch.setattr(looking, "differences", lambda plan, found, model_dir: [])
    found = attach(attached_plan(), "")
    assert [(e.index, e.url, e.tp) for e in found.policy] == [(2, "http://a:1", 2), (4, "http://c:3", 2)]
    assert [e.url for e in found.frozen["judge"]] == ["http://b:2"]
    assert len(found.all) == 3
    assert attach(plan_of(APART), "") == Attached()


def test_everything_wrong_with_any_of_them_is_told_together(monkeypatch):
    def look_at(url, deadline):
        if url == "http://b:2":
            raise looking.Unreachable("nothing answers")
        return looking.Found({}, {})

    monkeypatch.setattr(looking, "look_at", look_at)
    monkeypatch.setattr(looking, "differences", lambda plan, found, model_dir: ["one", "two"])
    with pytest.raises(RlrunError) as e:
        attach(attached_plan(), "")
    assert [p.code for p in e.value.problems] == ["external-mismatch", "external-unreachable", "external-mismatch"]
    first, second, _ = e.value.problems
    assert "http://a:1 is not what the plan takes for an engine of the policy:\n  - one\n  - two" in first.summary
    assert "placement.rollout.external.1.url" in second.hint


def test_a_frozen_model_on_an_external_server_is_not_compared(monkeypatch):
    monkeypatch.setattr(looking, "look_at", lambda url, deadline: looking.Found({}, {}))
    monkeypatch.setattr(looking, "differences", lambda plan, found, model_dir: ["one"])
    plan = plan_of(APART, external=[("http://b:2", "judge")])
    assert attach(plan, "").policy == ()
