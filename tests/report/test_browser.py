"""The page in a real browser: headless Chromium, as a desktop and as a phone, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

from fanin.emulation.report import write_report
from fanin.records.record import RunRecord
from tests.report.records import compared, emulated, measured
from tests.support.thorough import thorough

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PHONE = {"width": 360, "height": 780, "deviceScaleFactor": 2, "mobile": True}
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
SCROLLING = """
return Array.from(document.querySelectorAll('main *'))
  .filter(each => !each.closest('svg') && each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 1)
  .filter(each => getComputedStyle(each).overflowX !== 'visible').map(each => each.outerHTML.slice(0, 80))
"""
OVERLAPPING = """
return Array.from(document.querySelectorAll('figure svg')).filter(svg => svg.getClientRects().length).flatMap(svg => {
  const texts = Array.from(svg.querySelectorAll('text')).filter(text => text.textContent.trim());
  const boxes = texts.map(text => text.getBoundingClientRect());
  return boxes.flatMap((one, i) => boxes.slice(i + 1).flatMap((other, j) => {
    const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    return wide > 1 && high > 0.35 * Math.min(one.height, other.height)
      ? [texts[i].textContent.trim() + ' | ' + texts[i + 1 + j].textContent.trim()] : [];
  }));
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
    assert browser.execute_script(SCROLLING) == [], "a part of the page scrolls by itself"
    letters = browser.execute_script(LETTERS)
    assert len(letters) > 50
    assert min(letters) >= MIN_LETTER_PX
    assert min(browser.execute_script(CONTRASTS)) >= WCAG_AA


@pytest.mark.parametrize("device", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize(
    "record",
    [emulated, thorough(measured), thorough(compared)],
    ids=["emulated", "measured", "compared"],
)
def test_no_letters_of_a_plot_lie_over_others(
    browser: Chrome, tmp_path: Path, device: Mapping[str, object], record: Callable[[], RunRecord]
) -> None:
    file = tmp_path / "page.html"
    write_report(record(), file)
    page = browser.current_url
    show(browser, device, "light")
    browser.get(file.as_uri())
    try:
        assert browser.execute_script(OVERLAPPING) == []
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= int(str(device["width"])), "the page scrolls sideways"
    finally:
        browser.get(page)


def test_every_picture_has_a_text_in_its_place(browser: Chrome) -> None:
    show(browser, DESKTOP, "light")
    pictures = browser.find_elements(By.CSS_SELECTOR, "[role=img]")
    assert len(pictures) == 16
    for picture in pictures:
        assert picture.get_attribute("aria-label")
        described_by = picture.get_attribute("aria-describedby")
        assert described_by
        assert len(browser.find_element(By.ID, described_by).text) > 20


def test_paper_is_light_and_has_the_wide_plots(browser: Chrome) -> None:
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", dict(PHONE))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    try:
        assert browser.execute_script(BACKGROUND) == "rgb(255, 255, 255)"
        assert all(plot.is_displayed() for plot in browser.find_elements(By.CSS_SELECTOR, "figure .wide svg"))
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


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
