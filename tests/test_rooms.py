"""Imports point downwards: the rooms of the house, and a checker that walks the syntax tree."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "hf_px"
ROOT = Path(__file__).resolve().parents[1] / PACKAGE

# a new module gets a place here
LEVELS = [
    ["errors", "mask", "prunable", "batches", "schedule", "allocate", "registry", "head", "words", "figures",
     "default", "shareable"],
    # models: networks that hub/backbones.py builds; not on the ground floor, since DeepLabV3+ has timm's encoders
    ["forward", "linearize", "models", "redraw"],
    ["scorers"],
    ["lost", "rounds", "zeros", "analysis", "ridge"],
    ["hub", "store", "checkpoint", "local_settings"],
    [
        "data", "metrics", "tasks", "overlay", "predict", "gallery", "options", "train", "fitting", "runs", "twin",
        "trackers", "publish", "job", "sweep", "report", "flags", "pruning", "reporting", "commands", "cli",
    ],
]  # fmt: skip
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
GROUND_FLOOR = {"torch", "numpy", *sys.stdlib_module_names}


def modules(root: Path) -> dict[str, Path]:
    """{dotted name: file}; a package goes by its own name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[str, ast.stmt, bool]]:
    """(absolute dotted name, statement, does it run) of all that the file imports, in functions too.

    What stands under TYPE_CHECKING does not run: it may close a circle, but it may not climb.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ifs = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    typing = {node for test in ifs if ast.unparse(test.test) == "TYPE_CHECKING" for node in ast.walk(test)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node, node not in typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [base, node.module]))
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if full == f"{PACKAGE}.__version__":
                    continue  # all that a room may take from the front door
                yield (full if full in known else base), node, node not in typing  # a submodule, or a name inside one


def faults(root: Path) -> list[str]:
    """Every import that climbs, crosses between scorers, uses the front door from inside, or closes a circle."""
    known = modules(root)
    found: list[str] = []
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        if name == root.name:
            continue  # the front door sees every room
        room = name.split(".")[1]
        if room not in LEVEL:
            found.append(f"{name} has no room; give {room} a level in tests/test_rooms.py")
            continue
        for target, node, runs in imports(name, path, known):
            where = f"{name}:{node.lineno} imports {target}"
            top, _, rest = target.partition(".")
            if top != root.name:
                if LEVEL[room] == 0 and top not in GROUND_FLOOR:
                    found.append(f"{where}; level 0 is torch only")
                continue
            if not rest:
                found.append(f"{where}, the front door; import from the module itself")
                continue
            other = rest.split(".")[0]
            if LEVEL.get(other, -1) > LEVEL[room]:
                found.append(f"{where}: level {LEVEL[room]} imports level {LEVEL[other]}")
            if room == other == "scorers" and path.name != "__init__.py":
                found.append(f"{where}: scorers never import each other")
            if runs:
                graph[name].add(target)
    return found + [f"circle: {' -> '.join(circle)}" for circle in circles(graph)]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    done: set[str] = set()
    found: list[list[str]] = []

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            found.append([*trail[trail.index(name) :], name])
        elif name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, [*trail, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


def test_imports_point_downwards() -> None:
    assert len(modules(ROOT)) > 10  # the checker looks at the real tree
    assert faults(ROOT) == []


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"mask.py": "from .store import save_mask", "store.py": ""}, "level 0 imports level 4"),
        ({"mask.py": "def f():\n    from .rounds import prune", "rounds.py": ""}, "level 0 imports level 3"),
        ({"mask.py": "from . import rounds", "rounds.py": ""}, "level 0 imports level 3"),
        ({"mask.py": "import hf_px.rounds", "rounds.py": ""}, "level 0 imports level 3"),
        ({"mask.py": "if TYPE_CHECKING:\n    from .rounds import prune", "rounds.py": ""}, "level 0 imports level 3"),
        ({"scorers/a.py": "from .b import b", "scorers/b.py": ""}, "scorers never import each other"),
        ({"scorers/a.py": "from . import b", "scorers/b.py": ""}, "scorers never import each other"),
        ({"linearize/tape.py": "from ..scorers.b import b", "scorers/b.py": ""}, "level 1 imports level 2"),
        (
            {"mask.py": "from .prunable import p", "prunable.py": "from .mask import m"},
            "circle: hf_px.mask -> hf_px.pru",
        ),
        ({"mask.py": "import timm"}, "level 0 is torch only"),
        ({"cli.py": "import hf_px"}, "the front door"),
        ({"cli.py": "from . import prune_all"}, "the front door"),
        ({"attic.py": ""}, "hf_px.attic has no room"),
    ],
)
def test_the_checker_sees_a_bad_import(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    found = faults(_tree(tmp_path, files))
    assert len(found) == 1
    assert complaint in found[0]


def test_the_checker_lets_good_imports_pass(tmp_path: Path) -> None:
    good = {
        "__init__.py": "from .cli import main\nfrom .mask import Mask",
        "mask.py": "import numpy\nimport torch\nfrom pathlib import Path",
        "allocate.py": "from .mask import Mask",
        "scorers/__init__.py": "from . import a, b",
        "scorers/a.py": "from ..allocate import Scores",
        "scorers/b.py": "from ..linearize import record",
        "linearize/__init__.py": "from .tape import record",
        "linearize/tape.py": "from . import rules\nfrom .rules import gate",
        "linearize/rules.py": "if TYPE_CHECKING:\n    from .tape import Replay",
        "cli.py": "import timm\nfrom . import __version__\nfrom . import scorers\nfrom .models.net import net",
        "models/net.py": "",
    }
    assert faults(_tree(tmp_path, good)) == []


def _tree(tmp_path: Path, files: dict[str, str]) -> Path:
    root = tmp_path / PACKAGE
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        for folder in (root, (root / name).parent):
            if not (folder / "__init__.py").exists():
                (folder / "__init__.py").touch()
    return root
