"""A package imports only packages listed before it in ORDER; a checker walks the syntax tree."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "hf_px"
ROOT = Path(__file__).resolve().parents[1] / PACKAGE

# a package imports only packages listed before it
ORDER = [
    "core",
    "figures",  # not in report/, as the card draws too
    "channels",
    "paths",
    "scorers",
    "prune_config",
    "pruning",
    "sparse_training",
    "refit",
    "analysis",
    "models",
    "data",
    "tickets",
    "deploy",
    "runtime",
    "training",
    "report",
    "cli",
]
RANK = {name: rank for rank, name in enumerate(ORDER)}
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
                    continue  # all that a package may take from the public API
                yield (full if full in known else base), node, node not in typing  # a submodule, or a name inside one


def faults(root: Path) -> list[str]:
    """Every import that climbs, crosses between scorers, uses hf_px itself from inside, or closes a circle."""
    known = modules(root)
    found: list[str] = []
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        if name == root.name:
            continue  # the public API imports from every package
        package = name.split(".")[1]
        if package not in RANK:
            found.append(f"{name} has no rank; give {package} a place in tests/test_layers.py")
            continue
        for target, node, runs in imports(name, path, known):
            where = f"{name}:{node.lineno} imports {target}"
            top, _, rest = target.partition(".")
            if top != root.name:
                if package == "core" and top not in GROUND_FLOOR:
                    found.append(f"{where}; core is torch only")
                continue
            if not rest:
                found.append(f"{where}, the public API; import from the module itself")
                continue
            other = rest.split(".")[0]
            if RANK.get(other, -1) > RANK[package]:
                found.append(f"{where}: {other} lies above {package}")
            if package == other == "scorers" and path.name != "__init__.py":
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


@pytest.mark.parametrize("path", [*ROOT.rglob("*.py"), *(ROOT.parent / "recipes").glob("*.py")], ids=lambda p: p.stem)
def test_a_function_fits_on_a_screen_and_a_file_is_one_idea(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert len(text.splitlines()) <= 400
    assert not [f.name for f in functions if (f.end_lineno or 0) - f.lineno + 1 > 60]


def test_every_package_says_what_it_is_for_and_what_it_may_import() -> None:
    for package in (path for path in ROOT.rglob("__init__.py") if path.parent != ROOT):
        text = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
        assert re.search(r"^(May import|Imports) (\w+)", text, re.MULTILINE), package


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"core/mask.py": "from ..tickets.file import save", "tickets/file.py": ""}, "tickets lies above core"),
        ({"core/mask.py": "def f():\n    from ..pruning import prune", "pruning.py": ""}, "pruning lies above core"),
        ({"core/mask.py": "from .. import pruning", "pruning.py": ""}, "pruning lies above core"),
        ({"core/mask.py": "import hf_px.pruning", "pruning.py": ""}, "pruning lies above core"),
        (
            {"core/mask.py": "if TYPE_CHECKING:\n    from ..pruning import prune", "pruning.py": ""},
            "pruning lies above core",
        ),
        ({"scorers/a.py": "from .b import b", "scorers/b.py": ""}, "scorers never import each other"),
        ({"scorers/a.py": "from . import b", "scorers/b.py": ""}, "scorers never import each other"),
        ({"paths/tape.py": "from ..scorers.b import b", "scorers/b.py": ""}, "scorers lies above paths"),
        ({"data/a.py": "from ..tickets.b import b", "tickets/b.py": ""}, "tickets lies above data"),
        (
            {"core/mask.py": "from .prunable import p", "core/prunable.py": "from .mask import m"},
            "circle: hf_px.core.mask -> hf_px.core.pru",
        ),
        ({"core/mask.py": "import timm"}, "core is torch only"),
        ({"cli/a.py": "import hf_px"}, "the public API"),
        ({"cli/a.py": "from .. import prune_all"}, "the public API"),
        ({"attic.py": ""}, "hf_px.attic has no rank"),
    ],
)
def test_the_checker_sees_a_bad_import(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    found = faults(_tree(tmp_path, files))
    assert len(found) == 1
    assert complaint in found[0]


def test_the_checker_lets_good_imports_pass(tmp_path: Path) -> None:
    good = {
        "__init__.py": "from .cli import main\nfrom .core.mask import Mask",
        "core/mask.py": "import numpy\nimport torch\nfrom pathlib import Path",
        "core/allocate.py": "from .mask import Mask",
        "scorers/__init__.py": "from . import a, b",
        "scorers/a.py": "from ..core.allocate import Scores",
        "scorers/b.py": "from ..paths import record",
        "paths/__init__.py": "from .tape import record",
        "paths/tape.py": "from . import rules\nfrom .rules import gate",
        "paths/rules.py": "if TYPE_CHECKING:\n    from .tape import Replay",
        "cli/__init__.py": "import timm\nfrom .. import __version__, scorers\nfrom ..models.net import net",
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
