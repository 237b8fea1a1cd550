"""Whether a port can be had: asked when a run is planned, and again when its servers start."""

from __future__ import annotations

import socket


def is_free(port: int, host: str) -> bool:
    """Whether this machine could listen on host:port now. One that only just closed (TIME_WAIT) counts as free."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError:
            return False
        return True
