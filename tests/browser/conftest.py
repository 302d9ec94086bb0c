import shutil

import pytest
from playwright.sync_api import sync_playwright

# Without these, Chromium looks for its maker's servers at every start.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window, the one that is installed."""
    found = next(
        (
            path
            for name in ("chromium", "google-chrome", "chromium-browser")
            if (path := shutil.which(name))
        ),
        None,
    )
    assert found, "no Chromium: install Debian's package chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Write reports as a page and open it; at the end nothing was asked of the network and nothing went wrong."""
    from teka.audit.page.pages import write_page

    said, requests, pages = [], [], []

    def open_(reports, width=1280, height=900):
        path = write_page(reports, tmp_path / f"audit-{len(pages)}.html")
        page = browser.new_page(viewport={"width": width, "height": height})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        pages.append((page, path.as_uri()))
        return page

    yield open_
    for page, _ in pages:
        page.close()
    assert said == []
    assert requests == [address for _, address in pages]
