"""The damaged tickets of fuzz.py, loaded with runtime="sparse"; run as a program of its own, since it may crash.

    PYTHONPATH=.:tests python tests/support/fuzz_sparse.py --seed 17      # one case, as a failing test prints it

The law: a ticket that the dense runtime refuses is a TicketError here too; one that it loads gives the same output
here, or an error of hf_px that says why the sparse runtime cannot.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

import hf_px
from hf_px.core.errors import TicketError, UnsupportedModelError
from hf_px.runtime import tuning
from support import fuzz
from support.sparse import always_sparse, difference

SECONDS = 30  # a model is loaded twice, exported and tuned


def outputs(model: Any, size: tuple[int, ...]) -> torch.Tensor:
    x = torch.randn(2, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(x)
    return getattr(found, "logits", found)


def hold_law(directory: Path) -> str:
    dense, why = None, ""
    try:
        dense = hf_px.from_pretrained(directory)
    except TicketError as error:
        why = str(error)
    try:
        sparse = hf_px.from_pretrained(directory, runtime="sparse")
    except TicketError as error:
        if dense is not None:
            raise fuzz.Broken(f"refused, although the dense runtime reads it: {error}") from error
        return "refused"
    except UnsupportedModelError:
        if dense is None:
            raise fuzz.Broken("an error that names no file, of a ticket that cannot be read") from None
        return "unsupported"
    if dense is None and "the digest of the mask" in why:
        return "mask not read"  # a model of transformers carries its mask, the sparse one does not
    if dense is None:
        raise fuzz.Broken("was read, although the dense runtime refuses it")
    size = next(iter(sparse._programs), (3, 32, 32))
    expected, found = outputs(torch.nn.Module.float(dense), size), outputs(always_sparse(sparse), size)
    known = torch.isfinite(expected)
    if not known.all():
        return "not finite"
    if difference(found, expected) > 1e-3:
        raise fuzz.Broken(f"other outputs, by {difference(found, expected):.1e}")
    return "read"


def run(seed: int, tickets: list[fuzz.Home], scratch: Path) -> tuple[str, str, fuzz.Case]:
    case = fuzz.drawn(seed, tickets, native=False)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name, data in case.files.items():
        (scratch / name).write_bytes(data)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return hold_law(scratch), "", case
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-3:]
        lines = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in where)
        return "broken", f"{type(error).__name__}: {str(error)[:200]} at {lines}", case
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first case")
    parser.add_argument("--count", type=int, default=1)
    args = parser.parse_args()
    transformers.logging.set_verbosity(50)
    warnings.simplefilter("ignore")
    tuning._REPEATS = 1
    signal.signal(signal.SIGALRM, fuzz.alarm)
    ends: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="hf-px-fuzz-") as folder:
        os.environ["HF_PX_CACHE"] = str(Path(folder) / "cache")
        tickets = fuzz.homes(None)
        for seed in range(args.seed, args.seed + args.count):
            print(json.dumps({"running": seed}), flush=True)  # what it was doing if it crashes
            end, fault, case = run(seed, tickets, Path(folder) / "ticket")
            ends[end] = ends.get(end, 0) + 1
            if fault:
                repro = f"PYTHONPATH=.:tests python tests/support/fuzz_sparse.py --seed {seed}"
                print(json.dumps({"broken": seed, "what": case.what, "fault": fault, "repro": repro}), flush=True)
            elif args.count == 1:
                print(json.dumps({"ended": end, "what": case.what}))
        print(json.dumps({"ends": ends}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
