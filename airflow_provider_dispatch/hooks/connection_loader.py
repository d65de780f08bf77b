# SPDX-License-Identifier: Apache-2.0
"""A connection for programs beside Airflow, such as the ``dispatch`` command, which finds this module by its name.

It is read the way Airflow's own command line does, from all secrets backends and the database; tasks and triggers use
the hook instead. It makes no adapter.
"""

from __future__ import annotations

from airflow.models.connection import Connection

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.dispatch import DEFAULT_CONNECTION_ID
from airflow_provider_dispatch.hooks.settings import ConnectionSettings, parse_connection
from airflow_provider_dispatch.version_compat import AirflowNotFoundException


def load_connection(conn_id: str) -> ConnectionSettings:
    """Fetch a connection and check it; a ``dispatch_default`` that doesn't exist means the local backend.

    :raises SpecError: it does not exist, or says something wrong.
    """
    try:
        found = Connection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        if conn_id == DEFAULT_CONNECTION_ID:
            return ConnectionSettings()
        raise SpecError("--conn-id", "Airflow has no connection of that name", conn_id) from None
    return parse_connection(conn_id, found.conn_type, found.extra)
