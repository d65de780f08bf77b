# SPDX-License-Identifier: Apache-2.0
"""What a user may set about the local adapter. The adapter, the watch and whoever starts an agent read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.core.validation import validate_settings


class LocalSettings(BaseModel):
    """Settings of one connection.

    :param root: folder that holds the stores; absolute.
    :param store: name of the store, which is a folder beneath *root*.
    :param deployment: jobs of another one are refused; None takes any.
    :param retire_after_seconds: how long an agent stays with nothing to do. Counts for the agent that this caller
        starts; one that runs already keeps its own.
    :param agent_start_seconds: how long a call waits for an agent to answer.
    :param pass_env: names of further variables of the starting process that agent and ranks may see.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    root: Path
    store: str = Field(default="default", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$")
    deployment: str | None = None
    retire_after_seconds: float = Field(default=60.0, ge=0, le=86_400)
    agent_start_seconds: float = Field(default=20.0, gt=0, le=600)
    pass_env: tuple[str, ...] = ()

    @field_validator("root")
    @classmethod
    def _is_absolute(cls, value: Path) -> Path:
        if not value.is_absolute() or "\0" in str(value):
            raise ValueError("must be an absolute path")
        try:
            os.fsencode(value)
        except UnicodeError:
            raise ValueError("must be a path that this system can write") from None
        return value

    @property
    def layout(self) -> StoreLayout:
        """Where this store lies."""
        return StoreLayout(self.root / self.store)


def parse_settings(fields: Mapping[str, object]) -> LocalSettings:
    """Read the settings of a connection.

    :raises SpecError: an unknown field or a wrong value; never shows the value.
    """
    return validate_settings(LocalSettings, fields)
