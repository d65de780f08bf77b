# SPDX-License-Identifier: Apache-2.0
"""What Airflow shows and loads of this provider, as plain data.

Called through the entry point ``apache_airflow_provider`` in every Airflow process, so it imports nothing but the
version. Airflow refuses a provider whose ``package-name`` differs from its distribution and silently ignores metadata
whose keys aren't written with hyphens.
"""

from __future__ import annotations

from airflow_provider_dispatch import __version__

INTEGRATION = "Dispatch"


def get_provider_info() -> dict[str, object]:
    """The provider's description, as ``airflow/provider_info.schema.json`` wants it."""
    return {
        "package-name": "airflow-provider-dispatch",
        "name": "Dispatch",
        "description": "Starts, holds, releases and supervises multi-node training jobs on the scheduler you have.",
        "versions": [__version__],
        "integrations": [{"integration-name": INTEGRATION, "tags": ["service"]}],
        "operators": _in_modules("operators.gate", "operators.hold", "operators.job", "operators.stop"),
        "sensors": _in_modules("sensors.gate", "sensors.hold", "sensors.job"),
        "hooks": _in_modules("hooks.dispatch"),
        "triggers": _in_modules("triggers.job"),
        "connection-types": [
            {
                "connection-type": "dispatch",
                "hook-class-name": "airflow_provider_dispatch.hooks.dispatch.DispatchHook",
                "hook-name": "Dispatch",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port", "extra"],
                    "relabeling": {},
                    "placeholders": {},
                },
                "conn-fields": _build_connection_fields(),
            }
        ],
    }


def _in_modules(*names: str) -> list[dict[str, object]]:
    return [
        {"integration-name": INTEGRATION, "python-modules": [f"airflow_provider_dispatch.{name}" for name in names]}
    ]


def _build_connection_fields() -> dict[str, object]:
    """The form of a connection; a value lands under its field's name in the connection's extra."""
    return {
        "backend": {
            "label": "Backend",
            "description": "Where jobs run. local: as processes of the machine that asks. kubeflow: on a Kubernetes "
            "cluster with Kubeflow Trainer.",
            "schema": {"type": "string", "enum": ["local", "kubeflow"], "default": "local"},
        },
        "deployment": {
            "label": "Deployment",
            "description": "Name of this Airflow. Two that share a backend need different names: both may use the same "
            "dag and run ids.",
            "schema": {"type": "string", "default": "airflow", "minLength": 1, "maxLength": 63},
        },
        "store": {
            "label": "Store",
            "description": "Name of the local store, a folder in the Airflow home. Jobs of one store share its queues.",
            "schema": {"type": "string", "default": "default", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
        },
        "queue": {
            "label": "Default queue",
            "description": "Queue of a job that names none. Empty: the backend's own default.",
            "schema": {"type": ["string", "null"]},
        },
        "priority": {
            "label": "Default priority",
            "description": "Priority of a job that names none: a number, or a name that the backend knows.",
            "schema": {"type": ["string", "null"]},
        },
        "call_timeout_seconds": {
            "label": "Call time-out (seconds)",
            "description": "How long one call to the backend may take; past it nothing more is written.",
            "schema": {"type": "number", "default": 60, "minimum": 1, "maximum": 600},
        },
        **_build_cluster_fields(),
    }


def _build_cluster_fields() -> dict[str, object]:
    """Of the kubeflow backend."""
    texts = {
        "namespace": ("Namespace", "Where jobs live. Empty: default."),
        "kubeconfig": (
            "Kubeconfig",
            "Path on workers and triggerers. Empty: the pod's own account, else ~/.kube/config.",
        ),
        "context": ("Context", "Of the kubeconfig. Empty: its current one."),
        "runtime": ("Training runtime", "Of a job that names none."),
        "runtime_kind": ("Kind of the runtime", "ClusterTrainingRuntime (the default) or TrainingRuntime."),
        "image": ("Image", "Of a role that names none. Empty: the runtime's own."),
        "admission_check": ("Admission check", "Empty: dispatch-admission."),
        "lease_namespace": ("Controller's namespace", "Where dispatch-admission runs. Empty: dispatch-system."),
        "has_controller": (
            "Controller without a queue",
            "Whether dispatch-admission looks after jobs without a queue.",
        ),
        "state_claim": ("State: volume claim", "PersistentVolumeClaim that becomes DISPATCH_STATE_DIR."),
        "state_host_path": ("State: host folder", "Folder on every node that becomes DISPATCH_STATE_DIR instead."),
    }
    schemas: dict[str, object] = {"has_controller": {"type": "boolean", "default": True}}
    return {
        name: {
            "label": f"Cluster: {label}",
            "description": description,
            "schema": schemas.get(name, {"type": ["string", "null"]}),
        }
        for name, (label, description) in texts.items()
    }
