"""The page in a real browser: headless Chromium, as a desktop and as a phone, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

from fanin.emulation.report import write_report
from tests.report.records import emulated

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESKTOP = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
MIN_LETTER_PX = 9.0
"""Height of the smallest text in a plot, as it is shown."""
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"
LETTERS = """
return Array.from(document.querySelectorAll('figure svg text'))
  .filter(text => text.getClientRects().length > 0 && text.textContent.trim())
  .map(text => {
    const matrix = text.getScreenCTM();
    return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
  })
"""
CONTRASTS = """
const luminance = color => {
  const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const paper = luminance(getComputedStyle(document.body).backgroundColor);
return Array.from(document.querySelectorAll('h1, h2, p, td, th, a, .figures b')).map(element => {
  const ink = luminance(getComputedStyle(element).color);
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
});
"""
WCAG_AA = 4.5
"""Contrast of text, Web Content Accessibility Guidelines 2.1, section 1.4.3."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromium-driver are not installed"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    assert CHROMIUM
    assert DRIVER
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options, ChromeService(DRIVER))
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report(emulated(workers=4, steps=40), file)
    chrome.get(file.as_uri())
    try:
        yield chrome
    finally:
        chrome.quit()


def show(browser: Chrome, device: Mapping[str, object], scheme: str) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", dict(device))
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_it_can_be_read(browser: Chrome, device: Mapping[str, object], scheme: str) -> None:
    show(browser, device, scheme)
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= int(str(device["width"])), "the page scrolls sideways"
    letters = browser.execute_script(LETTERS)
    assert len(letters) > 50
    assert min(letters) >= MIN_LETTER_PX
    assert min(browser.execute_script(CONTRASTS)) >= WCAG_AA


def test_dark_mode_is_dark_and_light_mode_light(browser: Chrome) -> None:
    show(browser, DESKTOP, "dark")
    dark = browser.execute_script(BACKGROUND)
    show(browser, DESKTOP, "light")
    assert browser.execute_script(BACKGROUND) == "rgb(255, 255, 255)"
    assert max(int(part) for part in dark.removeprefix("rgb(").removesuffix(")").split(",")) < 40


def test_a_phone_gets_the_narrow_plots_and_a_desktop_the_wide_ones(browser: Chrome) -> None:
    for device, shown, hidden in ((PHONE, "narrow", "wide"), (DESKTOP, "wide", "narrow")):
        show(browser, device, "light")
        assert all(plot.is_displayed() for plot in browser.find_elements(By.CSS_SELECTOR, f"figure .{shown} svg"))
        assert not any(plot.is_displayed() for plot in browser.find_elements(By.CSS_SELECTOR, f"figure .{hidden} svg"))


def test_links_of_the_contents_lead_to_plots(browser: Chrome) -> None:
    targets = [link.get_attribute("href") for link in browser.find_elements(By.CSS_SELECTOR, "nav a")]
    assert len(targets) == 8
    for target in targets:
        assert target
        assert browser.find_elements(By.ID, target.partition("#")[2])


def test_the_browser_has_nothing_to_complain_about(browser: Chrome) -> None:
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_screenshots_can_be_taken_for_a_look(browser: Chrome, tmp_path: Path) -> None:
    show(browser, PHONE, "dark")
    assert browser.get_screenshot_as_png().startswith(b"\x89PNG")
