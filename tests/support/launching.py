"""Launch recipes as a user does, on so few images that a run takes seconds; kill them, and see what is left."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hf_px.training.command_line import error_message
from support.places import REPO

RECIPE = REPO / "recipes" / "prune_finetune.py"
sys.path.insert(0, str(RECIPE.parent))  # as it is for a script that lies there

import prune_finetune  # noqa: E402


def main(argv: list[str]) -> None:
    """The recipe in this process, for what ends before a process of its own is worth it."""
    prune_finetune.main(without_bench(argv))


def without_bench(words: Iterable[Any], recipe: Path = RECIPE) -> list[str]:
    """The flags of a recipe, and not to time the ticket, unless they say so."""
    flags = [str(word) for word in words]
    if "--bench" in flags or recipe.name not in ("prune_finetune.py", "imp.py", "sweep.py", "ablate.py"):
        return flags
    behind = [] if recipe.name in ("prune_finetune.py", "imp.py") or "--" in flags else ["--"]
    return [*flags, *behind, "--bench", "false"]


@contextmanager
def refusal(match: str) -> Iterator[None]:
    """The block ends with an error that a recipe prints like this."""
    with pytest.raises(ValueError) as caught:
        yield
    printed = error_message(caught.value)
    assert re.search(match, printed), printed
    assert not re.search(r"`\w+`", printed), printed  # flags, not Python arguments


def refused_before_work(
    recipe: ModuleType, argv: list[str], complaint: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe ends with this error, and has written nothing."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", argv)
    with refusal(re.escape(complaint)):
        recipe.main()
    assert not (folder / "out").exists()


def recipe_module(path: Path) -> ModuleType:
    """A recipe imported by its file, under a name that no other module has."""
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
    spec.loader.exec_module(found)
    return found


def small_digits(folder: Path, train: int = 192, test: int = 61) -> Path:
    """Handwritten digits as parquet files, as on the Hub; 61 is odd: two processes cannot share it evenly."""
    import datasets
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = [Image.fromarray((image * 15.9).astype("uint8")) for image in digits.images]
    for split, rows in (("train", range(train)), ("test", range(train, train + test))):
        features = datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=[f"digit {i}" for i in range(10)])}
        )
        columns = {"image": [images[i] for i in rows], "label": [int(digits.target[i]) for i in rows]}
        datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def small_pairs(folder: Path, train: int = 16, test: int = 5) -> Path:
    """Pictures of a bright disk or square on noise, with masks: ground, disk, square; a rim of 255. Sizes differ."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", test)):
        for kind in ("images", "masks"):
            (folder / split / kind).mkdir(parents=True)
        for i in range(count):
            height, width = 40 + 5 * (i % 3), 36 + 7 * (i % 2)
            y, x = np.mgrid[:height, :width]
            cy, cx, r = rng.integers(14, height - 14), rng.integers(14, width - 14), 10
            away = np.hypot(y - cy, x - cx) if i % 2 else np.maximum(abs(y - cy), abs(x - cx))
            mask = np.where(away < r, 1 + (i + 1) % 2, 0)
            mask[(away >= r) & (away < r + 1)] = 255
            colour = np.array([220, 60, 40] if i % 2 else [40, 80, 230])
            pixels = np.where((away < r)[..., None], colour, 120) + rng.integers(-30, 30, (height, width, 3))
            Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(folder / split / "images" / f"{i:03}.png")
            Image.fromarray(mask.astype("uint8")).save(folder / split / "masks" / f"{i:03}.png")
    (folder / "classes.txt").write_text("background\ndisk\nsquare\n")
    return folder


def command(*flags: Any, processes: int = 0, recipe: Path = RECIPE) -> list[str]:
    """python recipe, or `accelerate launch` where a number of processes is given."""
    words = [sys.executable, str(recipe), *without_bench(flags, recipe)]
    if processes:
        launch = ["-m", "accelerate.commands.launch", "--num_processes", str(processes)]
        if processes > 1:  # `--cpu --num_processes 2` would start a single process without a word
            launch += ["--multi_gpu", "--main_process_port", str(_free_port())]
        words[1:1] = launch
    return words


def environment(cwd: Path) -> dict[str, str]:
    # a cache of dense twins for each place: else a second run would take the first one's
    own = {"HF_PX_CACHE": str(cwd / "cache"), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])}


def launch(
    cwd: Path, *flags: Any, processes: int = 0, recipe: Path = RECIPE, check: bool = True, timeout: int = 500
) -> str:
    """Run to the end; what it printed."""
    cwd.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command(*flags, processes=processes, recipe=recipe), cwd=cwd, env=environment(cwd), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0 or not check, done.stdout[-6000:]
    return done.stdout


def launch_and_kill(cwd: Path, when: Callable[[], bool], *flags: Any, processes: int = 0, recipe: Path = RECIPE) -> str:
    """kill -9 to every process of the run as soon as `when()`, an error if it ends before that; what it printed."""
    cwd.mkdir(parents=True, exist_ok=True)
    with open(cwd / "killed.log", "wb") as log:
        run = subprocess.Popen(
            command(*flags, processes=processes, recipe=recipe), cwd=cwd, env=environment(cwd), stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 400
            while not when():
                assert run.poll() is None, f"ended before it was killed: {(cwd / 'killed.log').read_text()[-3000:]}"
                assert time.monotonic() < deadline, "nothing to kill it at came"
                time.sleep(0.002)
        finally:
            for pid in at_work_in(cwd):  # not the group of the launcher: torch gives each process one of its own
                os.kill(pid, signal.SIGKILL)
            run.wait()
            while at_work_in(cwd):
                time.sleep(0.01)
    return (cwd / "killed.log").read_text(errors="replace")


def at_work_in(folder: Path) -> list[int]:
    """Processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            found += [int(path.parent.name)] if path.readlink() == folder.resolve() else []
        except OSError:  # it has just gone, or it is not ours
            continue
    return found


SERVER = """
import functools, gc, importlib.util, json, os, sys, traceback

def forked(main, argv, out, err):
    if pid := os.fork():
        return pid
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0), os.dup2(out, 1), os.dup2(err, 2)
    sys.argv = argv
    code = 1
    try:
        code = main() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)

def code_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@functools.cache
def recipe(path):
    name = "recipe_" + os.path.basename(path).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    found = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found

sys.path.insert(0, sys.argv[1])
for name in ("prune_finetune.py", "imp.py", "sweep.py"):
    recipe(os.path.join(sys.argv[1], name))

# a recipe that starts others, its cells, forks too
import hf_px.training.sweep.directory
from hf_px.training.command_line import run_recipe

class Forked:
    def __init__(self, words, stdin, stdout, stderr):
        first = next(i for i, word in enumerate(words) if word.endswith(".py"))  # before it: accelerate launch

        def main():
            with open("cell.pid", "w") as file:  # before it does anything that one may wait for
                file.write(str(os.getpid()))
            run_recipe(recipe(words[first]).main)

        self.pid = forked(main, words[first:], stdout.fileno(), stdout.fileno())

    def wait(self, timeout=None):
        return code_of(self.pid)

class subprocess:
    Popen, DEVNULL, STDOUT = Forked, None, None

hf_px.training.sweep.directory.subprocess = subprocess
gc.collect(), gc.freeze()  # the runs would look at all that is imported here in each full collection

for line in sys.stdin:
    path, cwd, argv, environments = json.loads(line)
    main = recipe(path).main  # here, so that the next run finds it

    def begin(environment):
        os.chdir(cwd)
        os.environ.update(environment)
        return main()

    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND  # to append: several may write
    files = [os.open(cwd + name, flags) for name in ("/run.log", "/run.err")]
    pids = [forked(functools.partial(begin, each), [path, *argv], *files) for each in environments]
    for file in files:
        os.close(file)
    print(json.dumps(pids), flush=True)
    print(json.dumps([code_of(pid) for pid in pids]), flush=True)
"""


class Server:
    """Imports the recipes once and forks for every run, and for its cells: most of a short run's time is imports."""

    def __init__(self, place: Path) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(RECIPE.parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=environment(place),
        )  # fmt: skip

    def run(
        self, cwd: Path, *flags: Any, recipe: Path = RECIPE, processes: int = 1, code: int = 0,
        kill: Callable[[], bool] | None = None, env: Mapping[str, str] | None = None,
    ) -> str:  # fmt: skip
        """To the end, and to this exit code, or with kill -9 as soon as `kill()`; what it printed, its errors last."""
        # as accelerate launch sets them
        each = {"HF_PX_CACHE": str(cwd / "cache"), "ACCELERATE_MIXED_PRECISION": "no", **(env or {})}
        together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        together |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
        environments = [each | together | {"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(processes)]
        words = [str(recipe), str(cwd), without_bench(flags, recipe), environments if processes > 1 else [each]]
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(words) + "\n")
        self._server.stdin.flush()
        pids = json.loads(self._server.stdout.readline())
        if kill is not None:
            deadline = time.monotonic() + 200
            while not kill() and time.monotonic() < deadline:
                time.sleep(0.002)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        ended = json.loads(self._server.stdout.readline())
        said = (cwd / "run.log").read_text(errors="replace") + self.errors(cwd)
        assert set(ended) == {code if kill is None else -signal.SIGKILL}, said[-4000:]
        return said

    @staticmethod
    def errors(cwd: Path) -> str:
        """What the last run there printed to stderr."""
        return (cwd / "run.err").read_text(errors="replace")

    def close(self) -> None:
        self._server.kill()
        self._server.wait()


def cell_of(cwd: Path) -> int:
    """The process that a server's run has last forked for a cell."""
    return int((cwd / "cell.pid").read_text())


def run_here(recipe: ModuleType, cwd: Path, *words: str) -> int:
    """A recipe's main in this process, which has imported what it takes; what it starts are processes all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        for name, value in environment(cwd).items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", [str(recipe.__file__), *without_bench(words, Path(str(recipe.__file__)))])
        return recipe.main()


def until(met: Callable[[], bool], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def exists(folder: Path, *patterns: str) -> Callable[[], bool]:
    return lambda: any(next(folder.glob(pattern), None) for pattern in patterns)


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def outcome(folder: Path, leave_out: Iterable[str] = ("seconds", "speed")) -> dict[str, Any]:
    """All that a run leaves, to be compared with another's: results, and the bytes of every other file."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    found["results.json"] = {key: value for key, value in results(folder).items() if key not in leave_out}
    return found


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    """{file: (inode, time of the last change)}: the same for two looks if nobody wrote in between."""
    return {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    import hf_px

    return hf_px.from_pretrained(folder).state_dict()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
