"""Folders that tests read: the repository, fixtures that ship with it, and ../shared, which a clone does not have."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FIXTURES = REPO / "tests" / "fixtures"
SHARED = REPO.parent / "shared"
