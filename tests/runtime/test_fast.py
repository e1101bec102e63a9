"""hf_px.fast: the same call with the same result, on any threads; what it does not do is a clear error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch
from support.makers import pruned
from support.places import REPO
from support.sparse import always_sparse, difference, exact, prune_, trained_
from torch import nn
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention

import hf_px
from hf_px.core.errors import UnsupportedModelError
from hf_px.core.prunable import prunable
from hf_px.runtime import fast as module

SIZE = (3, 32, 32)


def images(count=5, side=32, seed=0):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


class Small(nn.Module):
    """Strides, a residual, a pool and tokens; several rows for each thread."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 12, 3, 2, 1), nn.BatchNorm2d(12)
        self.conv, self.down = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 16, 3, 2, 1)
        self.tokens, self.scale, self.head = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.max_pool2d(torch.relu(self.conv(x) + x), 3, 1, 1)
        x = self.down(x).flatten(2).transpose(1, 2)
        return self.head(self.scale(x + self.tokens(x)).mean(1))


def small(density=0.3):
    torch.manual_seed(0)
    return prune_(trained_(Small()), density)


@pytest.fixture(scope="module")
def shared_model():
    """(a model, its fast one without the dense way out); do not change them."""
    model = small()
    return model, always_sparse(hf_px.fast(model, input_size=SIZE, progress=False))


@pytest.fixture
def threads():
    """Sets torch's threads, for the test only."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# The same call, the same result


def test_a_tensor_for_a_tensor(shared_model):
    model, fast = shared_model
    for count in (1, 5):
        found = fast(images(count))
        assert type(found) is torch.Tensor and difference(found, exact(model, images(count))) < 1e-5


def test_an_output_of_transformers():
    model, _ = pruned("transformers")
    fast = hf_px.fast(model, input_size=SIZE, progress=False)
    for dense_wins in (False, True):
        fast._use_dense = lambda *_, wins=dense_wins: wins
        found = fast(pixel_values=images(2))
        assert isinstance(found, ImageClassifierOutputWithNoAttention)
        assert difference(found.logits, exact(model, images(2)).logits) < 1e-5
        assert torch.equal(found["logits"], found[0]) and found.hidden_states is None
        assert torch.equal(fast(images(2)).logits, found.logits)


def test_another_image_size_is_compiled_anew(shared_model):
    model, fast = shared_model
    for side in (17, 40):
        assert difference(fast(images(2, side)), exact(model, images(2, side))) < 1e-5
    assert {(3, 17, 17), (3, 40, 40), SIZE} <= set(fast._programs)


def test_without_a_size_it_is_compiled_with_the_first_batch():
    fast = hf_px.fast(small(), progress=False)
    assert not fast._programs and fast.nbytes == 0
    with pytest.raises(ValueError, match="`size`: the model names no image size"):
        fast.plan()
    always_sparse(fast)(images())
    assert set(fast._programs) == {SIZE}


def test_channels_last_and_views_are_images_too(shared_model):
    _, fast = shared_model
    expected = fast(images())
    assert torch.equal(fast(images().to(memory_format=torch.channels_last)), expected)
    assert torch.equal(fast(images(10)[::2]), fast(images(10)[::2].contiguous()))


def test_a_result_is_not_changed_by_the_next_call(shared_model):
    _, fast = shared_model
    first = fast(images(1))
    kept = first.clone()
    fast(images(1, seed=1))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("count", [1, 5])
def test_threads_change_nothing(shared_model, threads, count):
    """Bit for bit: a row is one thread's, whose order of summation is the same."""
    _, fast = shared_model
    threads(1)
    expected = fast(images(count))
    for number in (2, 3):
        threads(number)
        for _ in range(20):
            assert torch.equal(fast(images(count)), expected)
        assert torch.get_num_threads() == number


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 3])
def test_python_threads_may_call_one_model_at_once(shared_model, threads, number, count):
    _, fast = shared_model
    threads(number)
    batches = [images(count, seed=seed) for seed in range(3)]
    expected, faults = [fast(batch) for batch in batches], []

    def work(i):
        threads(number)
        try:
            for _ in range(20):
                if not torch.equal(fast(batches[i]), expected[i]):
                    faults.append(f"{i}: other numbers")
        except Exception as error:
            faults.append(f"{i}: {error!r}")

    running = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not faults and not any(thread.is_alive() for thread in running)


@pytest.mark.parametrize("number", [1, 2])
def test_a_forked_process_may_go_on(shared_model, threads, number):
    """As a DataLoader or gunicorn has it: built and called here, called again there."""
    _, fast = shared_model
    threads(number)
    expected = [fast(images(1)), fast(images(4))]
    child = os.fork()
    if not child:
        same = all(torch.equal(fast(images(len(e))), e) for e in expected)
        os._exit(0 if same else 1)
    done = threading.Timer(30, os.kill, (child, 9))
    done.start()
    _, status = os.waitpid(child, 0)
    done.cancel()
    assert status == 0
    assert torch.equal(fast(images(1)), expected[0])


def test_a_model_without_zeros_runs_as_it_is(monkeypatch):
    """Where torch is faster its own result comes back, bit for bit."""
    model = small(density=1)
    fast = hf_px.fast(model, input_size=SIZE, progress=False)
    clock = iter(range(10**6))
    wins = []
    monkeypatch.setattr(fast, "_run", lambda *args, run=fast._run: [next(clock) for _ in range(9)] and run(*args))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))  # each sparse run takes nine ticks more
    for count in (1, 4):
        found = fast(images(count))
        wins.append(fast._dense_is_faster[tuple(images(count).shape)])
        with torch.inference_mode():
            assert torch.equal(found, model(images(count)))
    assert wins == [True, True]


def test_later_changes_of_the_model_are_not_seen():
    model = small()
    fast = hf_px.fast(model, input_size=SIZE, progress=False)
    expected = exact(model, images())
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(7)
    model.train()
    for dense_wins in (False, True):
        fast._use_dense = lambda *_, wins=dense_wins: wins
        assert difference(fast(images()), expected) < 1e-5
    small_images = images(2, 16)
    assert difference(fast(small_images), exact(small(), small_images)) < 1e-5  # compiled after the change


def test_plan_lists_every_layer_with_its_kept_weights(shared_model):
    model, fast = shared_model
    table = fast.plan(SIZE)
    rows = {row.name: row for row in table.rows}
    for name, weight in prunable(model).items():
        assert (rows[name].kept, rows[name].total) == (int((weight != 0).sum()), weight.numel())
        assert rows[name].how in ("sparse", "dense") and rows[name].seconds >= 0
        assert name in str(table) and f"{int((weight != 0).sum()):,}" in str(table)
    assert table.seconds == pytest.approx(sum(row.seconds for row in table.rows))
    with pytest.raises(UnsupportedModelError, match="cannot be exported"):
        fast.plan((1, 32, 32))


def test_it_has_no_parameters_of_its_own(shared_model):
    """An optimizer has nothing to train, and its state_dict holds no second copy of the weights."""
    _, fast = shared_model
    assert not list(fast.parameters()) and not fast.state_dict() and not fast.training and fast.eval() is fast


# What it does not do


@pytest.mark.parametrize(
    "batch, words",
    [
        (torch.zeros(3, 32, 32), r"\(images, channels, height, width\), not shape \(3, 32, 32\)"),
        (torch.zeros(0, 3, 32, 32), r"not shape \(0, 3, 32, 32\)"),
        (torch.zeros(2, 3, 32, 32).double(), "images are torch.float64 on cpu"),
        (torch.zeros(2, 3, 32, 32).bfloat16(), "images are torch.bfloat16 on cpu"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "images are torch.uint8"),
        (torch.zeros(2, 3, 32, 32, device="meta"), "on meta"),
        ([1, 2], "not list"),
        (None, "not NoneType"),
    ],
)
def test_other_inputs_are_refused(shared_model, batch, words):
    with pytest.raises(ValueError, match=words):
        shared_model[1](batch)


def test_wrong_channels_are_refused(shared_model):
    with pytest.raises(UnsupportedModelError, match="3 channels"):
        shared_model[1](torch.zeros(2, 1, 32, 32))


def test_other_arguments_are_refused(shared_model):
    _, fast = shared_model
    with pytest.raises(TypeError, match="takes images alone, not output_attentions"):
        fast(images(), output_attentions=True)
    with pytest.raises(TypeError, match="takes images alone, not pixel_values, labels"):
        fast(pixel_values=images(), labels=torch.zeros(5))
    with pytest.raises(TypeError):
        fast(images(), images())


def test_training_is_refused(shared_model):
    _, fast = shared_model
    with pytest.raises(UnsupportedModelError, match="for inference"):
        fast.train()
    with pytest.raises(UnsupportedModelError, match=r"call model\.eval\(\) first"):
        hf_px.fast(small().train())
    model = small()
    model.norm.train()
    with pytest.raises(UnsupportedModelError, match="norm is in training mode"):
        hf_px.fast(model)


def test_gradients_are_refused(shared_model):
    _, fast = shared_model
    with pytest.raises(UnsupportedModelError, match="no gradients"):
        fast(images().requires_grad_())
    with torch.no_grad():
        assert not fast(images().requires_grad_()).requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(UnsupportedModelError, match=rf"stem.weight is {dtype}; .* model\.float\(\)"):
        hf_px.fast(small().to(dtype))


def test_other_devices_are_refused():
    with pytest.raises(UnsupportedModelError, match=r"stem.weight is on meta; .* model\.cpu\(\)"):
        hf_px.fast(small().to("meta"))


WITHOUT = """
import sys
sys.modules["llvmlite"] = None
import hf_px
from hf_px.models.networks import resnet20
for call in (lambda: hf_px.fast(resnet20().eval()), lambda: hf_px.from_pretrained(sys.argv[1], runtime="sparse")):
    try:
        call()
    except ImportError as error:
        print(error)
hf_px.from_pretrained(sys.argv[1])
"""


def test_without_llvmlite_it_says_how_to_install_it():
    ticket = REPO / "model_cards" / "examples" / "resnet20-cifar10-px-path-98"
    ran = subprocess.run([sys.executable, "-c", WITHOUT, str(ticket)], cwd=REPO, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    line = "the sparse runtime needs llvmlite: pip install 'hf-px[fast]', or pip install llvmlite"
    assert ran.stdout.splitlines() == [line, line]
