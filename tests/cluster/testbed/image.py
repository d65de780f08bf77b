# SPDX-License-Identifier: Apache-2.0
"""Makes the images that the nodes know: one to train in, one for the example DAGs, one that holds a pod's namespaces.

They are archives as ``docker save`` writes them, made without Docker and without a registry.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.cluster.testbed import pins
from tests.cluster.testbed.build import Builder, run_to_end
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.examples_image import build_examples_layer

SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
APT_SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
IMAGE_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def ensure_images(builder: Builder) -> list[Path]:
    """The archives of all images, made if need be."""
    pause = builder.ensure_binary(pins.BINARIES["pause"])
    trainer = ensure_trainer(builder)
    return [
        trainer,
        _ensure_examples(builder, trainer),
        builder.ensure(
            Path("images", f"{pause.parent.name}.tar"),
            lambda path: write_image(path, [_layer_of(pause)], pins.PAUSE_IMAGE, {"Cmd": ["/pause"]}),
        ),
    ]


def ensure_trainer(builder: Builder) -> Path:
    """The archive of the image to train in: Debian with Python and numpy."""
    packages = " ".join(pins.IMAGE_PACKAGES)
    key = hashlib.sha256(f"{packages} {pins.TRAINER_IMAGE} {read_codename()}".encode()).hexdigest()[:12]
    return builder.ensure(Path("images", f"trainer-{key}.tar"), _build_trainer)


def _ensure_examples(builder: Builder, trainer: Path) -> Path:
    """The trainer image and a layer above it: made again when an example's program changes."""
    layer = build_examples_layer()
    key = hashlib.sha256(f"{trainer.name} {pins.EXAMPLES_IMAGE}".encode() + layer).hexdigest()[:12]
    return builder.ensure(
        Path("images", f"examples-{key}.tar"),
        lambda path: write_image(path, [*read_layers(trainer), layer], pins.EXAMPLES_IMAGE, {"Cmd": ["python3"]}),
    )


def read_codename(release: Path = Path("/etc/os-release")) -> str:
    """Of the Debian that runs here: its package sources are for itself."""
    facts = dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
    if facts.get("ID") != "debian":
        raise TestbedError(f"the testbed's image is made from the machine's own Debian, and this is {facts.get('ID')}")
    return facts["VERSION_CODENAME"].strip('"')


def _build_trainer(path: Path) -> None:
    sources = [str(source) for source in APT_SOURCES if source.exists() and source.read_text().strip()]
    layer = path.with_suffix(".layer.tar")
    include = f"--include={','.join(pins.IMAGE_PACKAGES)}"
    try:
        run_to_end(["mmdebstrap", "--variant=minbase", include, read_codename(), str(layer), *sources])
        write_image(path, [layer.read_bytes()], pins.TRAINER_IMAGE, {"Cmd": ["python3"]})
    finally:
        layer.unlink(missing_ok=True)


def _layer_of(program: Path) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(program, program.name)
    return layer.getvalue()


def read_layers(image: Path) -> list[bytes]:
    """The layers of an archive that :func:`write_image` has made, the lowest first."""
    with tarfile.open(image) as archive:
        return [_open_member(archive, name).read() for name in _list_layers(archive)]


def open_layers(image: Path) -> Iterator[tarfile.TarFile]:
    """The same to be looked into, without reading all of it."""
    with tarfile.open(image) as archive:
        for name in _list_layers(archive):
            with tarfile.open(fileobj=_open_member(archive, name)) as layer:
                yield layer


def _list_layers(archive: tarfile.TarFile) -> list[str]:
    (manifest,) = json.load(_open_member(archive, "manifest.json"))
    names: list[str] = manifest["Layers"]
    return names


def _open_member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    content = archive.extractfile(name)
    if content is None:
        raise TestbedError(f"an image whose {name} is no file")
    return content


def write_image(path: Path, layers: Sequence[bytes], name: str, settings: Mapping[str, object]) -> None:
    """Write an image of these layers, uncompressed tar archives, the lowest first.

    :param settings: of its containers, such as ``Cmd``.
    """
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    config = json.dumps(
        {
            "architecture": IMAGE_ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Env": [SEARCH_PATH], "WorkingDir": "/", **settings},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
    ).encode()
    config_name, layer_names = f"{hashlib.sha256(config).hexdigest()}.json", [f"{one}/layer.tar" for one in digests]
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": layer_names}]).encode()
    members = [(config_name, config), *zip(layer_names, layers, strict=True), ("manifest.json", manifest)]
    with tarfile.open(path, "w") as archive:
        for member, content in members:
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
