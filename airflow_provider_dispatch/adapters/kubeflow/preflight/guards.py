# SPDX-License-Identifier: Apache-2.0
"""Turns what the cluster refuses into something that was not seen. That it can't be asked at all stays an error."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from airflow_provider_dispatch.adapters.kubeflow.errors import WebhookAwayError, quote_answer
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import Seen, Unseen
from airflow_provider_dispatch.exceptions import AdapterError, UnavailableError

T = TypeVar("T")


async def look(asked: Awaitable[T]) -> Seen[T]:
    """The answer, or why there is none.

    :raises UnavailableError: the API server itself doesn't answer.
    """
    try:
        return await asked
    except WebhookAwayError as error:
        return Unseen(quote_answer(error), error.webhook)
    except UnavailableError:
        raise
    except AdapterError as error:
        return Unseen(quote_answer(error))
