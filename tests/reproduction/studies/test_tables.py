import re
from functools import cache

import pytest

from reproduction.studies import tables


@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_of_pages_equal_the_results(name, monkeypatch):
    # The page is written three times below, with the same tables.
    makers = {title: cache(make) for title, make in tables.TABLES[name].items()}
    monkeypatch.setitem(tables.TABLES, name, makers)
    page = (tables.ROOT / name).read_text(encoding="utf-8")
    assert tables.update_tables(name, page) == page, "run `python -m reproduction.studies.tables`"
    without_tables = re.sub(r"(<!-- table: .* -->\n\n)(\|.*\n)+\n", r"\1", page)
    assert not re.search(r"-->\n\n\|", without_tables)
    assert tables.update_tables(name, without_tables) == page
    title = list(makers)[-1]
    with pytest.raises(ValueError, match=re.escape(f"{title} -->' once, got 0")):
        tables.update_tables(name, page.replace(f"<!-- table: {title} -->", ""))
