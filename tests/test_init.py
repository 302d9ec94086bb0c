"""Names and lazy imports of `import teka`."""

import subprocess
import sys

import pytest

import teka


def test_every_public_name_exists():
    assert set(teka.__all__) <= set(dir(teka))
    assert all(getattr(teka, name) is not None for name in teka.__all__)
    with pytest.raises(AttributeError, match="module 'teka' has no attribute 'audits'"):
        teka.audits  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_packages_are_imported_lazily():
    script = """import sys, teka
print(*(name for name in sys.modules if name.startswith('teka.')))
teka.audit.audit
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
