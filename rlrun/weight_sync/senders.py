"""Trainer rank 0 hands all weights to every engine: by value or CUDA IPC over HTTP, or by a gloo or NCCL broadcast; by
files in `disk` and `changes`.

What those by request and broadcast share is in `BucketSender.send`: buckets of bounded size (`groups.py` says which
weights share one), names checked against those expected, the version and the cache flush on the last bucket alone, and
the version read back from every engine. SGLang answers "success" to names that it does not know, so nothing is taken on
trust. A failed transfer raises; it leaves engines with mixed weights under the old version, and the run must end.

The engines must be idle: SGLang applies an update when its requests are done, and may fail when they are not.

SGLang itself is never imported here: importing it takes seconds, and a trainer has no other use for it. The formats
are those of SGLang 0.5.15.post1: `update_weights_from_tensor` with `load_format=flattened_bucket`, and
`update_weights_from_distributed`.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import socket
import threading
import time
import types
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import TypeVar
from urllib.parse import urlsplit

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from rlrun.backends.base import EngineAddress
from rlrun.errors import RunFailed
from rlrun.plan.types import SyncPlan
from rlrun.weight_sync.buckets import bucketize
from rlrun.weight_sync.files import Files
from rlrun.weight_sync.groups import apart, group_sizes, together

T = TypeVar("T")

PART = "weight sync"
SHOWN_NAMES = 5
CUDA_DEVICE_ARG = 6
"""Position of the device in the arguments of torch's `rebuild_cuda_tensor`."""


def make_sender(
    plan: SyncPlan,
    engines: Sequence[EngineAddress],
    device: str,
    timeout_s: float = 600.0,
    files: Files | None = None,
) -> Sender:
    """The sender of `plan.backend`: value, cuda_ipc, gloo, nccl, disk or delta. `device` is where the tensors given to
    it live, cpu or cuda; `timeout_s` is the deadline of each request and of each collective; what travels by disk
    takes `files`."""
    if plan.backend in ("disk", "delta"):
        from rlrun.weight_sync.changes import DeltaSender
        from rlrun.weight_sync.disk import DiskSender

        assert files is not None, "a transport by disk without a folder"
        by_file = DiskSender if plan.backend == "disk" else DeltaSender
        return by_file(plan, engines, device, timeout_s, files)
    wanted = {"value": "cpu", "gloo": "cpu", "cuda_ipc": "cuda", "nccl": "cuda"}[plan.backend]
    assert wanted == device, f"{plan.backend} moves {wanted} tensors, not {device} ones"
    kind: dict[str, Callable[..., Sender]]
    kind = {"value": ValueSender, "cuda_ipc": CudaIpcSender, "gloo": BroadcastSender, "nccl": BroadcastSender}
    return kind[plan.backend](plan, engines, device, timeout_s)


class Sender(ABC):
    """Base of the transports. Used from one thread, of trainer rank 0 only."""

    def __init__(self, plan: SyncPlan, engines: Sequence[EngineAddress], device: str, timeout_s: float):
        assert engines, "weight sync without engines"
        self.plan, self.engines, self.device, self.timeout_s = plan, tuple(engines), device, timeout_s
        self._pool = ThreadPoolExecutor(max_workers=len(engines), thread_name_prefix="weight-sync")

    def connect(self) -> None:  # noqa: B027  (HTTP has nothing to open)
        """Opens the transport."""

    @abstractmethod
    def send(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, expected_names: Sequence[str]
    ) -> dict[str, float]:
        """Gives every engine all weights and makes them `version`. Returns bytes (of one copy), tensors, seconds.

        `named_tensors` are Hugging Face names and whole tensors, each drawn once; they may be produced lazily.
        Raises RunFailed when a name is missing, unknown or sent twice (the engines then keep their old version), when
        an engine refuses or is gone, or when one reports another version afterwards.
        """

    def close(self) -> None:
        """Closes the transport; the engines keep their weights."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _post_all(self, path: str, bodies: Sequence[dict]) -> list[Future]:
        return [
            self._pool.submit(self._post, engine, path, body) for engine, body in zip(self.engines, bodies, strict=True)
        ]

    def _post(self, engine: EngineAddress, path: str, body: dict) -> None:
        answer = _http(engine, path, self.timeout_s, body)
        if answer.get("success") is not True:
            raise RunFailed(_name(engine), f"{path} failed: {answer.get('message', answer)}")

    def _check_versions(self, version: int) -> None:
        for engine in self.engines:
            reported = _http(engine, "/model_info", self.timeout_s)["weight_version"]
            if reported != str(version):
                raise RunFailed(_name(engine), f"reports weight version {reported!r} after a sync of version {version}")


class BucketSender(Sender):
    """Weights in buckets of at most `plan.bucket_bytes`, each given to all engines before the next is put together."""

    def send(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, expected_names: Sequence[str]
    ) -> dict[str, float]:
        start = time.perf_counter()
        total_bytes = num_tensors = 0
        checked = check_names(named_tensors, expected_names)
        sizes = group_sizes(expected_names)
        for bucket in bucketize(checked, self.plan.bucket_bytes, sizes, together, apart):
            bucket = [(name, tensor.detach().contiguous()) for name, tensor in bucket]
            # SGLang views slices of one uint8 tensor, which must be aligned: wide types first, then any mix is.
            bucket.sort(key=lambda item: -item[1].element_size())
            num_tensors += len(bucket)
            total_bytes += sum(tensor.numel() * tensor.element_size() for _, tensor in bucket)
            # The stream is known to have ended here: a further tensor would have been a duplicate or unknown.
            last = num_tensors == len(expected_names)
            self._send_bucket(bucket, {"flush_cache": last, "weight_version": str(version) if last else None})
        self._check_versions(version)
        return {
            "bytes": float(total_bytes),
            "tensors": float(num_tensors),
            "seconds": time.perf_counter() - start,
        }

    @abstractmethod
    def _send_bucket(self, bucket: list[tuple[str, Tensor]], fields: dict) -> None:
        """Gives one bucket to every engine; `fields` go into the request as they are."""


class ValueSender(BucketSender):
    """CPU tensors inside the HTTP request: no shared memory, any host, as fast as loopback for small models."""

    def _send_bucket(self, bucket: list[tuple[str, Tensor]], fields: dict) -> None:
        payload = base64.b64encode(pickle.dumps(flatten(bucket), protocol=pickle.HIGHEST_PROTOCOL)).decode()
        self._send_payload(payload, fields)

    def _send_payload(self, payload: str, fields: dict) -> None:
        bodies = [
            # One entry for each tensor-parallel rank; each rank cuts out its own part.
            {"serialized_named_tensors": [payload] * engine.tp, "load_format": "flattened_bucket", **fields}
            for engine in self.engines
        ]
        wait_all(self._post_all("/update_weights_from_tensor", bodies))


class CudaIpcSender(ValueSender):
    """CUDA tensors by IPC handle. Every engine process must see the GPU of trainer rank 0, which `server_env` of the
    SGLang backend arranges; ranks on other GPUs then read from it over NVLink or PCIe."""

    def _send_bucket(self, bucket: list[tuple[str, Tensor]], fields: dict) -> None:
        flat = flatten(bucket)
        torch.cuda.current_stream().synchronize()  # the handle carries no stream order
        buffer = io.BytesIO()
        _IpcPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(flat)
        self._send_payload(base64.b64encode(buffer.getvalue()).decode(), fields)
        del flat  # alive until every engine has answered
        torch.cuda.ipc_collect()


class _IpcPickler(ForkingPickler):
    """Names the device by UUID: sender and receiver may number their GPUs differently. SGLang replaces torch's
    `rebuild_cuda_tensor` on its side by one that looks the UUID up."""

    def reducer_override(self, obj):
        if not (isinstance(obj, Tensor) and obj.is_cuda):
            return NotImplemented
        rebuild, args = reductions.reduce_tensor(obj)
        uuid = str(torch.cuda.get_device_properties(args[CUDA_DEVICE_ARG]).uuid)
        return rebuild, (*args[:CUDA_DEVICE_ARG], uuid, *args[CUDA_DEVICE_ARG + 1 :])


class BroadcastSender(BucketSender):
    """A gloo or NCCL group of this process, rank 0, and every rank of every engine; a broadcast for each bucket."""

    _group = None
    _group_name = ""
    _broken = False

    def connect(self) -> None:
        world_size = 1 + sum(engine.tp for engine in self.engines)
        host = _own_address(self.engines[0])
        store = torch.distributed.TCPStore(
            host, 0, world_size, is_master=True, timeout=timedelta(seconds=self.timeout_s), wait_for_workers=False
        )
        self._group_name = f"rlrun-{os.getpid()}-{store.port}"
        bodies, rank = [], 1
        for engine in self.engines:
            bodies.append(
                {
                    "master_address": host,
                    "master_port": store.port,
                    "rank_offset": rank,
                    "world_size": world_size,
                    "group_name": self._group_name,
                    "backend": self.plan.backend,
                }
            )
            rank += engine.tp
        joining = self._post_all("/init_weights_update_group", bodies)
        self._group = beside_requests(
            lambda: _join_group(self.plan.backend, store, world_size, self._group_name, self.timeout_s),
            joining,
            f"joining the {self.plan.backend} group",
            self.timeout_s,
        )

    def _send_bucket(self, bucket: list[tuple[str, Tensor]], fields: dict) -> None:
        assert self._group is not None, "connect first"
        body = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
            "group_name": self._group_name,
            "load_format": "flattened_bucket",
            **fields,
        }
        receiving = self._post_all("/update_weights_from_distributed", [body] * len(self.engines))
        flat = flatten(bucket)["flattened_tensor"]
        if flat.is_cuda:
            torch.cuda.current_stream(flat.device).synchronize()  # the broadcast runs in another thread, on its stream
        doing = f"broadcasting over {self.plan.backend}"
        try:
            beside_requests(lambda: _broadcast(self._group, flat), receiving, doing, self.timeout_s)
        except RunFailed:
            self._broken = True
            raise

    def close(self) -> None:
        # A group that failed is left to the end of the process: destroying it could wait for the others for ever.
        if self._group is not None and not self._broken:
            leaving = self._post_all(
                "/destroy_weights_update_group", [{"group_name": self._group_name}] * len(self.engines)
            )
            torch.distributed.destroy_process_group(self._group)
            wait_all(leaving)
        self._group = None
        super().close()


def check_names(
    named_tensors: Iterable[tuple[str, Tensor]], expected_names: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """Passes the stream on. Raises RunFailed at a name that is unknown or seen before, and at the end when expected
    names are missing."""
    missing = dict.fromkeys(expected_names)
    assert len(missing) == len(expected_names), "expected names repeat"
    expected = set(missing)
    for name, tensor in named_tensors:
        if name not in missing:
            what = "twice" if name in expected else "which the engines do not expect"
            raise RunFailed(PART, f"the trainer sends {name} {what}", "the weight mapping is wrong")
        del missing[name]
        yield name, tensor
    if missing:
        names = list(missing)
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        raise RunFailed(
            PART,
            f"the trainer did not send {', '.join(names[:SHOWN_NAMES])}{more}",
            "the weight mapping is wrong",
        )


def flatten(bucket: Sequence[tuple[str, Tensor]]) -> dict:
    """SGLang's flattened bucket: one uint8 tensor, and where each weight lies in it (start_idx, end_idx and numel in
    bytes). SGLang reads attributes only, so plain namespaces stand for its FlattenedTensorMetadata."""
    parts = [tensor.flatten().view(torch.uint8) for _, tensor in bucket]
    metadata, offset = [], 0
    for (name, tensor), part in zip(bucket, parts, strict=True):
        end = offset + part.numel()
        metadata.append(
            types.SimpleNamespace(
                name=name, shape=tensor.shape, dtype=tensor.dtype, start_idx=offset, end_idx=end, numel=part.numel()
            )
        )
        offset = end
    return {"flattened_tensor": torch.cat(parts), "metadata": metadata}


def beside_requests(act: Callable[[], T], requests: Sequence[Future], doing: str, timeout_s: float) -> T:
    """Runs our half of a collective while the engines are asked to do theirs; returns when all are done.

    A rank whose peers have failed can wait for ever inside NCCL, where no exception reaches it. So `act` runs in a
    daemon thread, and the first failure, of any side, or the deadline, is raised here; the thread is then abandoned.
    """
    done: Future = Future()

    def run() -> None:
        try:
            done.set_result(act())
        except BaseException as e:
            done.set_exception(e)

    threading.Thread(target=run, name="weight-sync-collective", daemon=True).start()
    waiting, end = {done, *requests}, time.monotonic() + timeout_s
    while waiting:
        finished, waiting = wait(waiting, timeout=end - time.monotonic(), return_when=FIRST_COMPLETED)
        if not finished:
            raise RunFailed(PART, f"{doing} was not done in {timeout_s:g} s", "see the engines' logs in the run folder")
        # An engine's own reason says more than the error of a collective that lost a peer.
        errors = [f.exception() for f in sorted(finished, key=lambda f: f is done) if f.exception() is not None]
        if errors and isinstance(errors[0], RunFailed):
            raise errors[0]
        if errors:
            raise RunFailed(PART, f"{doing} failed: {errors[0]}") from errors[0]
    return done.result()


def _broadcast(group, flat: Tensor) -> None:
    options = torch.distributed.BroadcastOptions()
    options.rootRank = 0
    if flat.is_cuda:
        torch.cuda.set_device(flat.device)  # per thread
    group.broadcast([flat], options).wait()
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()


def _join_group(backend: str, store, world_size: int, name: str, timeout_s: float):
    """Rank 0's side of SGLang's `init_custom_process_group`: a group beside the default one, which torch has no public
    function for. Must build the same store prefixes as SGLang does."""
    from torch.distributed import distributed_c10d as c10d

    group, _ = c10d._new_process_group_helper(
        world_size,
        0,
        [],
        c10d.Backend(backend),
        c10d.PrefixStore(name, store),
        group_name=name,
        timeout=timedelta(seconds=timeout_s),
    )
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
    return group


def _own_address(engine: EngineAddress) -> str:
    """This host's address on the route to `engine`; no packet is sent."""
    target = urlsplit(engine.url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((target.hostname, target.port))
        return s.getsockname()[0]


def wait_all(futures: Sequence[Future]) -> None:
    """Waits for every future, then raises the first failure: no engine is left in the middle of a transfer."""
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    if errors:
        raise errors[0]


def _http(engine: EngineAddress, path: str, timeout_s: float, body: dict | None = None) -> dict:
    """The answer's JSON. Raises RunFailed naming the engine when it is gone, late, or answers with an error."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(engine.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as e:
        text = e.read().decode(errors="replace")[:500]
        raise RunFailed(_name(engine), f"{path} failed with HTTP {e.code}: {text}", _see_log(engine)) from e
    except OSError as e:
        reason = getattr(e, "reason", e)
        raise RunFailed(_name(engine), f"{path} to {engine.url} failed: {reason}", _see_log(engine)) from e


def _see_log(engine: EngineAddress) -> str:
    return "see its log" if engine.external else f"see engine_{engine.index}.log in the run folder"


def _name(engine: EngineAddress) -> str:
    return engine.name
