"""Where the time of a program goes, step by step, and a table of it."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import torch
from torch import Tensor

from .graph import Layer
from .kernels import runner
from .program import Program


class PlanRow(NamedTuple):
    name: str  # of the layer's weight, or of an operation
    how: str  # "sparse", "dense" or "torch"
    kept: int | None
    total: int | None
    seconds: float


class PlanTable(NamedTuple):
    """The steps of a program, with their times; str() is the table."""

    rows: tuple[PlanRow, ...]

    @classmethod
    def of(cls, program: Program, times: dict[str, float]) -> PlanTable:
        layers = {op.out: op for op in program.graph.ops if isinstance(op, Layer)}
        found: dict[str, PlanRow] = {}
        for label, seconds in times.items():
            op = layers.get(label.partition(",")[0])
            if op is None or label.endswith(("to planes", "to torch")):
                how = "torch" if label in program.torch_labels else "sparse"
                found[label] = PlanRow(label, how, None, None, seconds)
                continue
            name = program.graph.tensors.get(op.weight, op.weight)
            before = found[name].seconds if name in found else 0.0  # of gathering its pixels
            how = "sparse" if program.is_native(op) else "dense"
            kept, total = program.counts.get(op.weight, (None, None))
            found[name] = PlanRow(name, how, kept, total, before + seconds)
        return cls(tuple(found.values()))

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"{'step':<{width}}  how           kept           of  density       ms"]
        for row in self.rows:
            weights = " " * 32
            if row.kept is not None and row.total:
                weights = f"{row.kept:>10,}  {row.total:>11,}  {row.kept / row.total:>7.2%}"
            lines.append(f"{row.name:<{width}}  {row.how:<6}  {weights}  {1e3 * row.seconds:7.3f}")
        return "\n".join([*lines, f"{'sum':<{width}}  {'':<6}  {'':<32}  {1e3 * self.seconds:7.3f}"])


def step_times(program: Program, image: Tensor, turns: int = 5) -> dict[str, float]:
    """{label: median seconds}, each step alone, on one thread."""
    arena, steps, run = program.new_arena(), program.step_array(1), runner()
    times: dict[str, list[float]] = {}
    with torch.inference_mode():
        for turn in range(turns):
            values = {program.graph.inputs[0]: image}
            for label, stage in program.stages:
                if not isinstance(stage, range):
                    start = time.perf_counter()
                    stage(values, arena)
                    times.setdefault(label, [0.0] * turns)[turn] += time.perf_counter() - start
                    continue
                for i in stage:
                    start = time.perf_counter()
                    run(steps[i].ctypes.data, 1, arena.data_ptr(), 0, 1, 0)
                    times.setdefault(program.steps[i].label, [0.0] * turns)[turn] += time.perf_counter() - start
    return {label: statistics.median(found) for label, found in times.items()}
