"""What a pruning round costs, as ratios measured in one run: python recipes/benchmark.py

Every line compares things that are timed in alternating turns, so that a busy moment affects all of them; the figure is
the median over turns of the ratio within a turn. Brackets hold the project's aims.

  px          one `px` round over the batches / two plain float32 no-grad forward passes over them     (at most 1.3)
  px-path     one `px-path` round / two such forward passes and one backward pass                      (at most 1.3)
  literal     Algorithm 1 as printed: three forward passes and a backward pass per batch / one px round (at least 2)
  memory      peak of a px round / peak of one training step on the same batch                         (at most 1)
  allocation  the global mask of 25 million scores, in seconds                                         (under 1)
  loop        images a second of the recipe's loop, data, augmentation and kept zeros included, in full and in half
              precision / those of a bare loop: the same ResNet-20, one batch of 128 over and over  (at least 0.9)
  kernel      all 1,000 eigenvalues of a dense ResNet-20's NTK on 100 images of 32x32, in a process of its own: seconds
              and the peak of its memory, Python and torch included                        (under 120 s and 4 GiB)
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from hf_px import scorers as _methods  # noqa: F401  registers every method
from hf_px.core.allocate import Global
from hf_px.core.batches import Batches
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.core.registry import scorers
from hf_px.models.networks import resnet20

# name: (network, batch shape)
CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "ResNet-20, 32x32x100": ("resnet20", (100, 3, 32, 32)),
    "ResNet-50, 64x64x32": ("resnet50", (32, 3, 64, 64)),
}
DENSITY = 0.1  # of the mask that is scored: a round in the middle of pruning, not the first


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "resnet20":
        return resnet20(generator=torch.Generator().manual_seed(0)).eval()
    import timm

    return timm.create_model(name, zero_init_last=False).eval()


def case(name: str, batches: int) -> tuple[nn.Module, Mask, list[Tensor]]:
    model_name, shape = CASES[name]
    model, generator = network(model_name), torch.Generator().manual_seed(0)
    mask = Mask({n: torch.rand(w.shape, generator=generator) < DENSITY for n, w in prunable(model).items()})
    # channels last, the faster layout on the CPU
    data = [
        torch.randn(shape, generator=generator).contiguous(memory_format=torch.channels_last) for _ in range(batches)
    ]
    return mask.apply_(model), mask, data


def one_round(model: nn.Module, mask: Mask, data: list[Tensor], scorer: str) -> Callable[[], object]:
    """A round of `prune` without allocation: mask the weights, score them."""
    batches, generator = Batches(data), torch.Generator().manual_seed(0)
    memory = None

    def run() -> object:
        nonlocal memory
        memory = mask.weights(model, reuse=memory)
        return scorers[scorer].score(model, memory, batches, generator=generator)

    return run


def forward(model: nn.Module, data: list[Tensor]) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> None:
        for x in data:
            model(x)

    return run


def forward_backward(model: nn.Module, data: list[Tensor]) -> Callable[[], object]:
    """One forward pass with a graph and one backward pass to the weights."""

    def run() -> None:
        for x in data:
            model.zero_grad(set_to_none=True)
            model(x).sum().backward()
        model.zero_grad(set_to_none=True)

    return run


def training_step(model: nn.Module, data: list[Tensor]) -> Callable[[], object]:
    """Forward, backward and SGD with momentum, as the paper trains."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def run() -> None:
        for x in data:
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)).backward()
            optimizer.step()

    return run


def literal_algorithm_1(model: nn.Module, mask: Mask, data: list[Tensor]) -> Callable[[], object]:
    """Algorithm 1 as printed: copies g and h of f, h on the whole batch of ones, three forwards and a backward.

    float32 and stored statistics, as printed: its values overflow on deep networks. Only its time matters here.
    """
    f, g, h = model, copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        for name, p in g.named_parameters():
            p.copy_(mask.bits[name].float() if name in mask.bits else torch.ones_like(p))
        for p in h.parameters():
            p.square_()
    gates: list[Tensor] = []

    def wire(net: nn.Module, rule: Callable[[Tensor], Tensor]) -> None:
        for module in net.modules():
            if isinstance(module, nn.ReLU):
                module.forward = rule

    functional = not any(isinstance(m, nn.ReLU) for m in f.modules())
    plain = F.relu

    def record(x: Tensor) -> Tensor:
        gates.append((x > 0).to(x.dtype))
        return plain(x)

    def force(x: Tensor) -> Tensor:
        return x * gates.pop(0)

    def run_with(net: nn.Module, x: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
        if not functional:
            wire(net, rule)
            return net(x)
        F.relu = lambda x, inplace=False: rule(x)
        try:
            return net(x)
        finally:
            F.relu = plain

    def run() -> dict[str, Tensor]:
        scores = {n: torch.zeros_like(p) for n, p in h.named_parameters() if n in mask.bits}
        for x in data:
            with torch.no_grad():
                run_with(f, x, record)
                z_g = run_with(g, x.square(), force)
            h.zero_grad(set_to_none=True)
            z_h = run_with(h, torch.ones_like(x), lambda x: x)
            (z_g * z_h).sum().backward()
            for n, p in h.named_parameters():
                if n in scores:
                    scores[n] += p.grad * p.detach()
        if not functional:
            for module in f.modules():
                module.__dict__.pop("forward", None) if isinstance(module, nn.ReLU) else None
        return scores

    return run


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(jobs: dict[str, Callable[[], object]], turns: int, label: str) -> dict[str, list[float]]:
    """Seconds of every job in every turn, the jobs taking turns."""
    for work in jobs.values():
        work()  # warm up: caches, allocator, lazy imports
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in tqdm(range(turns), desc=label, unit="turn", leave=False):
        for name, work in jobs.items():
            seconds[name].append(timed(work))
    return seconds


def ratio(top: list[float], *bottom: list[float]) -> float:
    return statistics.median(t / sum(b) for t, *b in zip(top, *bottom))


def speed(name: str, batches: int, turns: int) -> dict[str, float]:
    model, mask, data = case(name, batches)
    jobs = {
        "forward": forward(model, data),
        "px": one_round(model, mask, data, "px"),
        "again": forward(model, data),
        "px-path": one_round(model, mask, data, "px-path"),
        "training": forward_backward(model, data),
        "literal": literal_algorithm_1(model, mask, data),
    }
    s = compare(jobs, turns, name)
    return {
        "forward_seconds": statistics.median(s["forward"]),
        "px_seconds": statistics.median(s["px"]),
        "px": ratio(s["px"], s["forward"], s["again"]),
        # a training pass is one forward and one backward: two forwards and a backward are one more forward
        "px-path": ratio(s["px-path"], s["forward"], s["training"]),
        "literal": ratio(s["literal"], s["px"]),
    }


def peak_memory(name: str, what: str) -> float:
    """Peak resident bytes above the idle process, measured in a separate process."""
    command = [sys.executable, __file__, "--peak", name, what]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure_peak(name: str, what: str) -> None:
    model, mask, data = case(name, 1)
    work = one_round(model, mask, data, "px") if what == "px" else training_step(model, data)
    forward(model, [x[:1] for x in data])()  # what the first call loads counts for neither
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    work()
    print(_status("VmHWM") - before)


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def run_kernel_process() -> dict[str, float]:
    command = [sys.executable, __file__, "--kernel", "--threads", str(torch.get_num_threads())]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_kernel() -> None:
    from hf_px.analysis.ntk import spectrum

    x = torch.randn(100, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = network("resnet20")
    seconds = timed(lambda: spectrum(model, [x], progress=False))
    print(json.dumps({"seconds": seconds, "peak_bytes": _status("VmHWM")}))


def loop(turns: int) -> dict[str, dict[str, float]]:
    """Each precision in a separate process: accelerate keeps one precision for its lifetime."""
    found = {}
    for precision in ("no", "bf16"):
        command = [sys.executable, __file__, "--loop-in", precision, "--turns", str(turns)]
        command += ["--threads", str(torch.get_num_threads())]
        found[precision] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print(
            f"training ResNet-20, {'float32' if precision == 'no' else precision}: "
            f"{found[precision]['images_per_second']:.0f} images a second, a bare loop "
            f"{found[precision]['bare_images_per_second']:.0f}: {found[precision]['ratio']:.2f} (at least 0.9)"
        )
    return found


def measure_loop(turns: int, precision: str, steps: int = 60) -> None:
    """Both loops in turns of an epoch; the recipe's continues where its last turn ended, and saves a checkpoint."""
    from hf_px.core.forward import output_tensor
    from hf_px.training.command_line import parse_options
    from hf_px.training.experiment import Experiment
    from hf_px.training.find_ticket import find_ticket
    from hf_px.training.loop import TrainingLoop

    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder) / "images")
        words = f"--data {folder}/images --scorer random --dense skip --epochs 1000 --eval-epochs 1000"
        words += f" --mixed-precision {precision} --output-dir {folder}/run"
        with contextlib.redirect_stdout(io.StringIO()):
            experiment = Experiment("prune_finetune", parse_options("prune_finetune", "", words.split()))
            _, mask = find_ticket(experiment)
        bare = network("resnet20").train()
        x = torch.randn(experiment.plan.batch_size, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        y = torch.arange(len(x)) % len(experiment.data.classes)
        done = 0

        def launched() -> None:
            nonlocal done
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                loop = TrainingLoop(experiment, "ticket", experiment.model, mask, start=done, stop=done + steps)
                for images, labels in loop:  # as in recipes/prune_finetune.py
                    with loop.accumulate():
                        loop.backward(loop.loss(output_tensor(loop.model(images)), labels))
                        loop.optimizer.step()
                        loop.optimizer.zero_grad()
                loop.finish()
            done += steps

        optimizer = torch.optim.SGD(bare.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

        def by_hand() -> None:
            for _ in range(steps):
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    loss = F.cross_entropy(bare(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        s = compare({"recipe": launched, "bare": by_hand}, turns, f"loop, {precision}")
        images = steps * len(x)
        found = {
            "images_per_second": images / statistics.median(s["recipe"]),
            "bare_images_per_second": images / statistics.median(s["bare"]),
            "ratio": ratio(s["bare"], s["recipe"]),
        }
        print(json.dumps(found))


def write_images(folder: Path) -> None:
    """Noise of CIFAR's size: 60 batches of 128 and a few to test on."""
    import datasets
    from PIL import Image

    pixels = torch.randint(256, (7680, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for split, count in {"train": 7680, "test": 20}.items():
        rows = {"image": [Image.fromarray(p.numpy()) for p in pixels[:count]], "label": [i % 10 for i in range(count)]}
        table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
        folder.mkdir(exist_ok=True)
        table.to_parquet(folder / f"{split}-0.parquet")


def allocation() -> float:
    generator = torch.Generator().manual_seed(0)
    scores = {f"layer{i:02}": torch.rand(500, 1000, generator=generator) for i in range(50)}
    mask = Mask.ones(scores)
    Global()(scores, 0.5, mask)
    return statistics.median(timed(lambda d=d: Global()(scores, d, mask)) for d in (0.5, 0.1, 0.018))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15, help="number of turns (default %(default)s)")
    parser.add_argument("--batches", type=int, default=1, help="batches per round (default %(default)s)")
    parser.add_argument("--threads", type=int, default=None, help="threads for torch (default: its own choice)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--loop", action="store_true", help="only the line `loop`")
    parser.add_argument("--kernel", action="store_true", help="only the line `kernel`, as JSON")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--loop-in", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.peak:
        return measure_peak(*options.peak)
    if options.kernel:
        return measure_kernel()
    if options.loop_in:
        return measure_loop(options.turns, options.loop_in)
    if options.loop:
        loop(options.turns)
        return None
    results: dict[str, object] = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "turns": options.turns,
        "batches": options.batches,
    }
    print(results["machine"])
    for name in CASES:
        found = speed(name, options.batches, options.turns)
        if Path("/proc/self/clear_refs").exists():
            found["memory"] = peak_memory(name, "px") / peak_memory(name, "training")
        results[name] = found
        print(f"\n{name}, {options.batches} batch(es), density {DENSITY:g}, median of {options.turns} turns")
        print(f"  px / two forwards                      {found['px']:.2f}   (at most 1.3)")
        print(f"  px-path / two forwards and a backward  {found['px-path']:.2f}   (at most 1.3)")
        print(f"  literal Algorithm 1 / px               {found['literal']:.2f}   (at least 2)")
        if "memory" in found:
            print(f"  peak memory of px / a training step    {found['memory']:.2f}   (at most 1)")
        print(f"  a forward pass {found['forward_seconds']:.3f} s, a px round {found['px_seconds']:.3f} s")
    results["allocation_seconds"] = allocation()
    print(f"\nallocation of 25 million scores          {results['allocation_seconds']:.2f} s (under 1)")
    results["loop"] = loop(options.turns)
    if Path("/proc/self/status").exists():
        results["kernel"] = found = run_kernel_process()
        print(f"NTK of ResNet-20, 100 images               {found['seconds']:.1f} s (under 120), ", end="")
        print(f"peak memory {found['peak_bytes'] / 2**30:.2f} GiB (under 4)")
    if options.json:
        temporary = options.json.with_suffix(".tmp")
        temporary.write_text(json.dumps(results, indent=2) + "\n")
        temporary.replace(options.json)


if __name__ == "__main__":
    main()
