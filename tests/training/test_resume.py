"""Settings of a run are compared by what they name, and kept in full where no upload takes them."""

from __future__ import annotations

from pathlib import Path

from hf_px.training.resume import read_local, resolved, write_local


def test_settings_are_compared_by_what_they_name(here: Path) -> None:
    (here / "scans").mkdir()
    asked = {"data": "../project/scans/", "model": "resnet20", "lr": 0.1, "base": "me/net"}
    assert resolved(asked) == {**asked, "data": str(here / "scans")}
    assert resolved({"data": str(here / "scans")}) == resolved({"data": "./scans"})


def test_settings_in_full_lie_where_no_upload_takes_them(tmp_path: Path) -> None:
    from huggingface_hub.utils import DEFAULT_IGNORE_PATTERNS, filter_repo_objects

    write_local(tmp_path, {"data": "/srv/acme/scans"})
    assert read_local(tmp_path) == {"data": "/srv/acme/scans"}
    files = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not list(filter_repo_objects(files, ignore_patterns=DEFAULT_IGNORE_PATTERNS))
    assert read_local(tmp_path / "elsewhere") is None
    for damaged in ("", "[]", '{"settings": 3}'):
        (tmp_path / ".cache/huggingface/hf_px.json").write_text(damaged)
        assert read_local(tmp_path) is None
