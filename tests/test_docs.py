# SPDX-License-Identifier: Apache-2.0
"""The documentation says what is: the architecture's tree and layers, the decisions' headings, index and checks.

What single pages say is compared with the code in ``tests/docs``.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PACKAGE = "airflow_provider_dispatch"
TREE_LINE = re.compile(r"^(?P<indent>(?:│   |    )*)[├└]── (?P<name>[\w.]+/?) +(?P<planned>\(not built yet\) )?\S")
ADR_HEADINGS = ["Context", "Decision", "Consequences", "Violated when", "Checked by"]
# Folders whose modules the tree shows; of the others it shows the folders alone.
SHOWN_WITH_MODULES = ("", "adapters/")


@pytest.fixture(scope="module")
def blocks(repository: Path) -> list[str]:
    """The drawn blocks of the architecture: the tree, then the layers."""
    return re.findall(
        r"^```text\n(.*?)^```", (repository / "docs/architecture.md").read_text(), re.MULTILINE | re.DOTALL
    )


def read_tree(block: str) -> dict[str, bool]:
    """Paths below the package → whether the tree says that they are built; folders end in a slash."""
    root, *lines = block.splitlines()
    assert root == f"{PACKAGE}/"
    paths: dict[str, bool] = {}
    parents: list[str] = []
    for line in lines:
        match = TREE_LINE.match(line)
        assert match, f"not a line of a tree: {line!r}"
        depth = len(match["indent"]) // 4
        parents[depth:] = [match["name"]]
        paths["".join(parents)] = match["planned"] is None
    return paths


def list_built(package: Path) -> set[str]:
    """What the tree has to show: all packages, and the modules of some."""
    folders = {f"{path.parent.relative_to(package).as_posix()}/" for path in package.rglob("__init__.py")} - {"./"}
    modules = {
        f"{folder}{path.name}"
        for folder in SHOWN_WITH_MODULES
        for path in (package / folder).glob("*.py")
        if not folder or path.name != "__init__.py"
    }
    return folders | modules


def test_the_tree_shows_what_is_built(repository: Path, blocks: list[str]) -> None:
    tree = read_tree(blocks[0])

    built = {path for path, is_built in tree.items() if is_built}

    assert built == list_built(repository / PACKAGE)


def test_the_layers_are_the_contract(repository: Path, blocks: list[str]) -> None:
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")

    assert blocks[1].splitlines() == [re.sub(r"[()]", "", layer) for layer in layers]


def test_every_room_of_the_tree_has_a_layer(blocks: list[str]) -> None:
    rooms = {path.rstrip("/").removesuffix(".py") for path in read_tree(blocks[0]) if "/" not in path.rstrip("/")}

    assert rooms - {"__init__"} == set(re.findall(r"\w+", blocks[1]))


def test_what_is_imported_by_string_keeps_to_the_layers_too(repository: Path, blocks: list[str]) -> None:
    """import-linter doesn't see these imports."""
    height = {room: -depth for depth, line in enumerate(blocks[1].splitlines()) for room in re.findall(r"\w+", line)}
    named = re.compile(rf'= deferred\("{PACKAGE}\.(\w+)')
    package = repository / PACKAGE
    found = [
        (path.relative_to(package).parts[0], room)
        for path in package.rglob("*.py")
        for room in named.findall(path.read_text())
    ]

    assert len(found) > 20
    assert [(room, other) for room, other in found if other != room and height[other] >= height[room]] == []


def test_every_decision_has_the_same_headings_and_a_place_in_the_index(repository: Path) -> None:
    folder = repository / "docs/adr"
    records = sorted(folder.glob("[0-9]*.md"))
    index = (folder / "index.md").read_text().splitlines()

    headings = {
        path.stem: re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
        for path in [*records, folder / "template.md"]
    }

    assert headings == dict.fromkeys(headings, ADR_HEADINGS)
    assert [path.stem for path in records if path.stem not in index] == []
    assert [int(path.stem[:4]) for path in records] == list(range(1, len(records) + 1))


def test_what_a_decision_says_checks_it_is_there(repository: Path) -> None:
    """A check that was renamed or removed leaves a decision that nothing keeps."""
    sources = {path: path.read_text() for path in (repository / "tests").rglob("*.py")}
    tests = {
        name for text in sources.values() for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.MULTILINE)
    }
    named = "".join(
        path.read_text().partition("## Checked by")[2] for path in (repository / "docs/adr").glob("[0-9]*.md")
    )
    paths, names = re.findall(r"`(tests/[\w/.]+)`", named), re.findall(r"`(test_\w+)`", named)

    assert (len(paths) > 10, len(names) > 10) == (True, True)
    assert [path for path in paths if not (repository / path).exists()] == []
    assert [name for name in names if name not in tests] == []


def list_pages() -> list[str]:
    root = Path(__file__).resolve().parents[1]
    return ["README.md", *(path.relative_to(root).as_posix() for path in sorted((root / "docs").rglob("*.md")))]


@pytest.mark.parametrize("page", list_pages())
def test_links_lead_somewhere(repository: Path, page: str) -> None:
    """Sphinx checks its own pages; a page read on a forge has no Sphinx."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", (repository / page).read_text())

    assert [target for target in targets if not ((repository / page).parent / target).exists()] == []
