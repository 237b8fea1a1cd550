"""`python -m rlrun.backends.sglang.launch server|router ...`: starts one SGLang server, or the router, in this process.

The arguments after the first word are SGLang's own. The top level runs again in every process that SGLang spawns
(multiprocessing imports the main module anew there), which is how the CPU shim and the hooks reach the scheduler
without a change to the environment or to site-packages.
"""

from __future__ import annotations

import argparse
import os
import sys

from rlrun.backends.sglang.owner import die_with_owner

if __name__ == "__main__":
    die_with_owner()

IS_SERVER = len(sys.argv) > 1 and sys.argv[1] == "server"
ON_CPU = os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"

if IS_SERVER and __name__ in ("__main__", "__mp_main__"):
    if ON_CPU:
        from rlrun.backends.sglang import cpu, delta_net, memory_cpu, seeded

        cpu.install_torchvision_ops()  # before anything imports sglang
        delta_net.install()
        seeded.register_cpu_hooks()
        cpu.register_hooks()
        delta_net.register_hooks()
        memory_cpu.register_hooks()

    from rlrun.backends.sglang import derived, weight_changes

    weight_changes.register_hooks()  # first, so that what is derived follows it
    derived.register_hooks()


def main(argv: list[str]) -> None:
    what, arguments = argv[0], argv[1:]
    if what == "router":
        _route(arguments)
        return
    assert what == "server", what
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    _require_hooks()
    try:
        run_server(prepare_server_args(arguments))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _require_hooks() -> None:
    """SGLang only logs a hook whose target it cannot find, and would then serve without it."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = sorted(set(HookRegistry._hooks) - HookRegistry._patched)
    if missing:
        raise SystemExit(f"this SGLang lacks what rlrun has to change in it: {', '.join(missing)}")


def _route(arguments: list[str]) -> None:
    # Not sglang_router.launch_router: it imports all of sglang, for the mini load balancer.
    from sglang_router.router import Router
    from sglang_router.router_args import RouterArgs

    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    Router.from_args(RouterArgs.from_cli_args(parser.parse_args(arguments), use_router_prefix=False)).start()


if __name__ == "__main__":
    main(sys.argv[1:])
