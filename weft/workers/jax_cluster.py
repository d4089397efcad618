"""`jax.distributed.initialize()` without arguments and delay, for the processes of any launcher.

JAX asks the classes derived from its `ClusterEnv`, and has none for torchrun's variables, which
`weft launch` sets, too, nor for Hydra or the newest Open MPI.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from weft.errors import WeftError
from weft.patches import replace_in_jax, table_of_jax
from weft.workers.member import WorkerRank, launched

_MODULE = "jax._src.clusters.cluster"
_ADDED: list[Any] = []
_PATIENCE, _POLLED = 2.0, 0.005  # seconds


def tell_jax() -> None:
    """Have JAX find the rank and address of this process: now, or once it is imported."""
    if launched_here() is None:
        return
    if (clusters := sys.modules.get(_MODULE)) is not None:
        _add(clusters)
    elif not any(isinstance(each, _WhenImported) for each in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def launched_here() -> WorkerRank | WeftError | None:
    """This process as its launcher describes it, or what is wrong with that; None without one."""
    try:
        return launched()
    except WeftError as error:
        return error


class _WhenImported(MetaPathFinder):
    """Adds the class when JAX's module is imported; most scripts never do."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        found = find_spec(name)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def execute_and_add(module: ModuleType) -> None:
                execute(module)
                _add(module)

            found.loader.exec_module = execute_and_add  # type: ignore[method-assign]
        return found


def _add(clusters: Any) -> None:
    """Add the class of Weft's launchers to those that JAX asks."""
    if _ADDED:
        return

    class LaunchedCluster(clusters.ClusterEnv):  # type: ignore[misc]
        """The processes of `weft launch`, torchrun, mpirun or Slurm."""

        name = "weft"

        @classmethod
        def is_env_present(cls) -> bool:
            """Whether the variables of a launcher are set, and not those of one that JAX knows.

            torchrun's go before: `weft launch` may run in a job of Slurm's.
            """
            found = launched_here()
            if found is None or (isinstance(found, WorkerRank) and found.launcher == "torchrun"):
                return found is not None
            known = [each for each in types if each is not cls and not each.opt_in_only_method]
            return not any(each.is_env_present() for each in known)

        @classmethod
        def get_coordinator_address(cls, *_: object, **options: object) -> str:
            """The address of process 0, at a port beside that of the workers' store."""
            me = _me()
            port = options.get("override_coordinator_port") or me.port + 1
            return f"[{me.address}]:{port}" if ":" in me.address else f"{me.address}:{port}"

        @classmethod
        def get_process_count(cls) -> int:
            """The processes of all hosts."""
            return _me().size

        @classmethod
        def get_process_id(cls) -> int:
            """The number of this one."""
            return _me().rank

        @classmethod
        def get_local_process_id(cls) -> int | None:
            """Its number on this host: that of its GPU among JAX's own devices."""
            found = launched_here()  # asked for whatever the script gives itself
            return found.local_rank if isinstance(found, WorkerRank) else None

    _ADDED.append(LaunchedCluster)
    types = table_of_jax(f"{_MODULE}:ClusterEnv._cluster_types")
    types.remove(LaunchedCluster)
    types.insert(0, LaunchedCluster)
    replace_in_jax("jax._src.lib:_jax.get_distributed_runtime_client", _when_served)


def _when_served(get_client: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's client, made once the service listens: a fork server's processes are all as early."""

    def get(address: str, *args: Any, **options: Any) -> Any:
        _await_service(address)
        return get_client(address, *args, **options)

    return get


def _await_service(address: str) -> None:
    """Wait for a service a little; what is wrong with its address is JAX's to say."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + _PATIENCE
    while port.isdecimal() and time.monotonic() < end:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
        except OSError:
            time.sleep(_POLLED)
        else:
            return


def _me() -> WorkerRank:
    """This process; raises if the launcher's variables are wrong."""
    found = launched()
    assert found is not None, "the variables were there"
    return found
