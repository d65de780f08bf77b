# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_dispatch.controller.__main__ import main
from airflow_provider_dispatch.controller.config import parse_config
from airflow_provider_dispatch.exceptions import SpecError


def test_defaults_stand_alone():
    config = parse_config([])
    assert (config.namespaces, config.admission_check, config.lease_name) == (
        (),
        "dispatch-admission",
        "dispatch-admission",
    )
    assert config.identity != parse_config([]).identity


def test_flag_outweighs_the_file(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("namespaces: [team-a]\nhealth_port: 1\nnode_monitor_grace_seconds: 20\n")
    config = parse_config(["--config", str(file), "--health-port", "2", "--namespace", "b", "--namespace", "c"])
    assert (config.health_port, config.namespaces) == (2, ("b", "c"))
    assert config.build_decision_settings().node_monitor_grace == timedelta(seconds=20)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("health_port: 70000", "health_port"),
        ("namespaces: [UPPER]", "namespaces.0"),
        ("no_such_field: 1", "no_such_field"),
        ("lease_renew_seconds: 9", "config"),
        ("request_timeout_seconds: 6\nlease_renew_seconds: 1", "config"),
        ("- a list", "config"),
        ("a: [", "config"),
    ],
)
def test_error_names_the_field(tmp_path: Path, content: str, field: str):
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(SpecError) as caught:
        parse_config(["--config", str(file)])
    assert caught.value.field == field


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(SpecError, match=r"nothing\.yaml"):
        parse_config(["--config", str(tmp_path / "nothing.yaml")])


def test_wrong_settings_end_the_program_with_a_sentence(capsys: pytest.CaptureFixture[str]):
    assert main(["--workers", "0"]) == 2
    assert "workers" in capsys.readouterr().err


def test_missing_kubeconfig_ends_the_program(tmp_path: Path):
    assert main(["--kubeconfig", str(tmp_path / "none"), "--health-port", "0", "--metrics-port", "0"]) == 2
