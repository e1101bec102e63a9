"""Run the Python of a card beside an image, in a process that cannot import hf_px: what somebody else does with a repo.

python exported_reader.py REPO SECTION; prints the logits that the code of SECTION, which names its file, computes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def main() -> None:
    sys.modules["hf_px"] = None  # type: ignore[assignment]  # as if it were not installed
    from huggingface_hub import hf_hub_download

    repo, file = sys.argv[1:]
    card = Path(hf_hub_download(repo, "README.md")).read_text(encoding="utf-8")
    (code,) = re.findall(rf"^Without hf_px, from `{re.escape(file)}`.*?^```python\n(.*?)^```", card, re.S | re.M)
    names: dict[str, object] = {}
    exec(code, names)
    torch = [name for name in ("torch", "timm", "transformers") if name in sys.modules]
    print(json.dumps({"logits": names["logits"].tolist(), "imported": torch}))  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
