"""Files of a local cluster, written before its nodes start. Control plane."""

from __future__ import annotations

from rmqha.host.access.shared_secret import make_secret_file
from rmqha.host.disk import make_directories
from rmqha.model.error import UsageError
from rmqha.ops.local.cluster_file import SECRET_FILE, SELF_ID, ClusterSpec, counted_from_zero, properties_text
from rmqha.ops.local.cluster_state import ClusterState, write_atomic


def prepare(spec: ClusterSpec, running: ClusterState | None) -> ClusterState:
    """Write the directory of the cluster, a properties file per node and the record, which is returned."""
    state = ClusterState.of(spec)
    try:
        make_directories(state.directory)
        with state.locked():
            for name, record in running.nodes.items() if running else ():
                if record.alive:
                    state.nodes[name] = record
            old = any(state.properties(node.name).get(SELF_ID) == "n0" for node in spec.nodes)
            for node in map(counted_from_zero, spec.nodes) if old else spec.nodes:
                make_directories(state.node_directory(node.name))
                if not state.nodes[node.name].alive:
                    write_atomic(state.config_path(node.name), properties_text(spec, node))
            make_secret_file(state.directory / SECRET_FILE)
            state.write()
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or state.directory}: {error.strerror}") from None
    return state
