"""Read tickets as strangers do, in this process or in one of their own: with an empty cache, with or without hf_px."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]


def read(how: str, where: str, **options: Any) -> Any:
    """The model, in eval mode. "hf_px", "transformers" or "timm" (hf-hub:… or local-dir:…)."""
    if how == "hf_px":
        import hf_px

        return hf_px.from_pretrained(where, **options)
    if how == "timm":
        import timm

        return timm.create_model(where, pretrained=True, **options).eval()
    import transformers

    return getattr(transformers, how).from_pretrained(where, **options).eval()


def outputs(model: Any, channels: int = 3, size: int = 32) -> list[float]:
    """What the model says of one image, always the same."""
    import torch

    image = torch.sin(torch.arange(channels * size * size, dtype=torch.float32)).reshape(1, channels, size, size)
    with torch.no_grad():
        found = model.eval()(image)
    return getattr(found, "logits", found).flatten().tolist()


def strangers(jobs: list[dict[str, Any]], *, hf_px: bool, home: Path, **env: str) -> list[dict[str, Any]]:
    """Run the jobs in one new process; each answer has `outputs`, or `error` and its `kind`, and what was warned of."""
    whole = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    whole |= {"HF_HOME": str(home), **({"PYTHONPATH": str(REPO)} if hf_px else {}), **env}
    command = [sys.executable, __file__, "with" if hf_px else "without", json.dumps(jobs)]
    done = subprocess.run(command, env=whole, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            model = read(job["how"], job["where"], **job.get("options", {}))
            found: dict[str, Any] = {"outputs": outputs(model, **job.get("image", {}))}
        except Exception as error:
            found = {"kind": type(error).__name__, "error": str(error)}
    return found | {"warned": [str(w.message) for w in said]}


def main() -> None:
    if sys.argv[1] == "without":
        sys.modules["hf_px"] = None  # type: ignore[assignment]  # as if it were not installed
    else:
        import hf_px  # before transformers: it registers itself when that comes

        assert Path(hf_px.__file__).is_relative_to(REPO)
    print(json.dumps([_answer(job) for job in json.loads(sys.argv[2])]))


if __name__ == "__main__":
    main()
