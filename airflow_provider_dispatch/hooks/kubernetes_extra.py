# SPDX-License-Identifier: Apache-2.0
"""The extra of a connection of type ``kubernetes``, as the cncf.kubernetes provider writes it, in our own words.

The connection's settings are read with it. What that provider says of a cluster is taken over; what only its own
operators need is passed by. Our further fields stand under the key ``dispatch``.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_dispatch.exceptions import SpecError

OWN_KEY = "dispatch"
_PREFIX = "extra__kubernetes__"
"""Of keys as older versions of that provider wrote them."""
_WORDS = {"namespace": "namespace", "kube_config_path": "kubeconfig", "cluster_context": "context"}


def read_kubernetes_extra(conn_id: str, extra: Mapping[str, object]) -> dict[str, object]:
    """Fields of a Dispatch connection.

    :raises SpecError: what we could not reach the cluster with.
    """
    given = {key.removeprefix(_PREFIX): value for key, value in extra.items() if value not in ("", None)}
    if "kube_config" in given:
        cure = "is a whole kubeconfig, which is not read; put it into a file and name that in kube_config_path"
        raise SpecError(f"connection {conn_id}: kube_config", cure)
    own = given.get(OWN_KEY, {})
    if not isinstance(own, Mapping):
        raise SpecError(f"connection {conn_id}: {OWN_KEY}", "must be an object with fields of a Dispatch connection")
    fields = {ours: given[theirs] for theirs, ours in _WORDS.items() if theirs in given}
    if given.get("in_cluster"):
        # That provider's own rule: the pod's account, and nothing from a file.
        fields = {name: value for name, value in fields.items() if name == "namespace"}
    return {**fields, **own}
