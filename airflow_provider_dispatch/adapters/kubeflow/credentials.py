# SPDX-License-Identifier: Apache-2.0
"""Where the API server is and who we are to it: a kubeconfig with its credential plugins, or a pod's own account.

The client asks it, again whenever the credentials are refused. It is the one module that imports the ``kubernetes``
package, and takes of it what no other library does as well. Requests are not among that: the two supported major
versions differ in how one makes them, and the transport needs neither.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import cast

import aiohttp
import yaml
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import Configuration

from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.transport import ConnectionSettings
from airflow_provider_dispatch.core.validation import describe_place
from airflow_provider_dispatch.exceptions import RefusedError, SpecError, UnavailableError, cut_text

IN_CLUSTER_VARIABLE = "KUBERNETES_SERVICE_HOST"
LOADING_SECONDS = 60.0
"""Longest time for a credential plugin or an identity provider."""
DEFAULT_KUBECONFIG = "~/.kube/config"


async def load_connection(settings: KubeflowSettings) -> ConnectionSettings:
    """Address and credentials, read anew, and kept apart from the package's own default configuration.

    :raises SpecError: kubeconfig or context isn't there or can't be read.
    :raises RefusedError: a pod without a usable service account.
    :raises UnavailableError: an identity provider doesn't answer.
    """
    configuration = Configuration()
    if settings.kubeconfig is None and settings.context is None and os.environ.get(IN_CLUSTER_VARIABLE):
        _load_in_cluster(configuration)
    else:
        await _load_kubeconfig(configuration, settings)
    if "@" in configuration.host:
        # Messages name the server, and a password in its address with it.
        raise SpecError("kubeconfig", "the server's address holds a user; write credentials under users")
    return cast("ConnectionSettings", configuration)


def _load_in_cluster(configuration: Configuration) -> None:
    try:
        kubernetes_config.load_incluster_config(client_configuration=configuration)
    except (kubernetes_config.ConfigException, OSError) as error:
        raise RefusedError(
            f"this looks like a pod whose service account can't be used ({error}); mount its token or name a kubeconfig"
        ) from error


async def _load_kubeconfig(configuration: Configuration, settings: KubeflowSettings) -> None:
    paths = _find_kubeconfig(settings)
    try:
        async with asyncio.timeout(LOADING_SECONDS):
            await kubernetes_config.load_kube_config(
                paths, context=settings.context, client_configuration=configuration, persist_config=False
            )
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UnavailableError(f"the credentials of {paths} can't be renewed now ({error})") from error
    except kubernetes_config.ConfigException as error:
        field = "context" if settings.context is not None and settings.context in str(error) else "kubeconfig"
        raise SpecError(field, f"can't be used: {cut_text(str(error))}", paths) from error
    except yaml.YAMLError as error:
        # Its own words hold what stands there: a token that begins with an exclamation mark is a tag to YAML.
        raise SpecError("kubeconfig", f"is not YAML{describe_place(error)}", paths) from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        # The package trips over a malformed file in many ways.
        raise SpecError(
            "kubeconfig", f"can't be read ({type(error).__name__}: {cut_text(str(error))})", paths
        ) from error


def _find_kubeconfig(settings: KubeflowSettings) -> str:
    paths = settings.kubeconfig or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise SpecError("kubeconfig", "there is no such file; name one, or run inside a cluster", paths)
    return paths
