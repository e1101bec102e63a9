"""RepairOptions: the flags of repair, for commands and recipes."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.options import at_least, option

IMAGES = 512  # classes that no image shows lose most, so many images do better; a layer draws some positions of each
ROUNDS = 5  # prune a little, refit, prune again


@dataclass
class RepairOptions:
    repair: bool | None = option(
        None,
        "after pruning, refit the kept weights by least squares so that every layer computes what it did before, "
        "without labels or training (default: yes where the weights are trained and there is data)",
        type=bool,
    )
    repair_images: int | None = option(None, f"images to repair by (default: {IMAGES})", type=int, metavar="N")

    def __post_init__(self) -> None:
        at_least(1, repair_images=self.repair_images)
