"""From the plan's slots to Ray's bundles, on clusters of GPUs that Ray is only told of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlrun.errors import RunFailed
from rlrun.plan.build import load_plan
from rlrun.runtime.placement import Granted, lacking, reserve

ONE_NODE = load_plan(["+experiment=qwen3_grpo"])  # 8 GPUs
TWO_NODES = load_plan(
    [
        "+experiment=qwen3_grpo",
        "placement.num_nodes=2",
        "placement.gpus_per_node=2",
        "placement.mode=disaggregated",
        "placement.trainer.gpus=2",
        "placement.rollout.gpus=2",
        "weight_sync.transport=distributed",
    ]
)


def free(*counts: tuple[int, int]) -> list[Granted]:
    return [Granted(f"10.0.0.{i}", has, left) for i, (has, left) in enumerate(counts, 1)]


@pytest.mark.parametrize(
    ("plan", "found", "total", "why"),
    [
        (ONE_NODE, free((8, 8)), True, None),
        (ONE_NODE, free((4, 4), (8, 0)), True, None),
        (
            ONE_NODE,
            free((4, 4), (8, 3)),
            False,
            "the plan needs 8 GPUs on one node; Ray has 10.0.0.1 4 GPUs (4 free), 10.0.0.2 8 GPUs (3 free)",
        ),
        (ONE_NODE, [], True, "the plan needs 8 GPUs on one node; Ray has no node with GPUs"),
        (TWO_NODES, free((4, 4)), True, "the plan needs 2 GPUs each on 2 nodes; Ray has 10.0.0.1 4 GPUs"),
        (TWO_NODES, free((2, 2), (4, 2)), False, None),
        (
            TWO_NODES,
            free((2, 2), (4, 1)),
            False,
            "the plan needs 2 GPUs each on 2 nodes; Ray has 10.0.0.1 2 GPUs (2 free), 10.0.0.2 4 GPUs (1 free)",
        ),
    ],
)
def test_what_is_lacking_is_said_node_by_node(plan, found, total, why):
    assert lacking(plan, found, total) == why


@pytest.fixture(scope="module")
def cluster():
    """Two nodes on this machine, at two loopback addresses, each with two GPUs that do not exist."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for address in ("127.0.0.2", "127.0.0.3"):
        cluster.add_node(node_ip_address=address, num_gpus=2, num_cpus=2, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.engines
class TestOnTwoNodes:
    def test_slots_are_numbered_by_node_and_gpu(self, cluster, monkeypatch):
        import ray

        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        slots = reserve(TWO_NODES)
        try:
            assert slots.gpus == ["0", "1", "0", "1"]
            where = ray.remote(lambda: (ray.util.get_node_ip_address(), ray.get_gpu_ids()))
            found = ray.get([where.options(**slots.options(i, 0.2)).remote() for i in range(4)])
            hosts = [host for host, _ in found]
            assert hosts == ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"]
            assert [ids for _, ids in found] == [[0], [1], [0], [1]]
        finally:
            slots.free()

    def test_too_many_gpus_are_refused_at_once(self, cluster):
        with pytest.raises(RunFailed, match=r"needs 8 GPUs on one node; Ray has 127.0.0.2 2 GPUs, 127.0.0.3 2 GPUs"):
            reserve(ONE_NODE)

    def test_gpus_that_others_hold_are_waited_for_and_then_named(self, cluster):
        import ray

        @ray.remote(num_gpus=1, num_cpus=0)
        class Holder:
            def here(self):
                return ray.util.get_node_ip_address()

        holder = Holder.remote()
        host = ray.get(holder.here.remote())
        hurried = replace(TWO_NODES, timeouts=replace(TWO_NODES.timeouts, start_s=2.0))
        with pytest.raises(RunFailed) as error:
            reserve(hurried)
        ray.kill(holder)
        assert "not granted in 2 s: the plan needs 2 GPUs each on 2 nodes" in str(error.value)
        assert f"{host} 2 GPUs (1 free)" in str(error.value)
        # What it waited for is given back: the next run can have it.
        reserve(TWO_NODES).free()
