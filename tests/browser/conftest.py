import shutil

import pytest
from playwright.sync_api import sync_playwright

# Without these options, Chromium connects to Google's servers at every start.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser():
    """Return a headless browser of the installed Chromium."""
    executable = next(
        (
            path
            for name in ("chromium", "google-chrome", "chromium-browser")
            if (path := shutil.which(name))
        ),
        None,
    )
    assert executable, "no Chromium: install Debian's package chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Return a function that opens a page of reports. A request or a console message fails the test."""
    from teka.audit.page.pages import write_page

    messages, requests, pages = [], [], []

    def write_and_open(reports, width=1280, height=900, pairs=()):
        path = write_page(reports, tmp_path / f"audit-{len(pages)}.html", pairs)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        pages.append((page, path.as_uri()))
        return page

    yield write_and_open
    for page, _ in pages:
        page.close()
    assert messages == []
    assert requests == [address for _, address in pages]
