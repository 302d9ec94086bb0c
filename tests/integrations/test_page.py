import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:.*nested_tensor", "ignore:.*nested tensor")
def test_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(block, "integrations.md", "exec"), names)
    assert names["losses"][-1] < names["losses"][0]
    assert names["words"].shape == (1, 8)
