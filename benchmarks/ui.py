"""How long a moved slider takes to be a picture: `python -m benchmarks.ui`.

A browser opens the page that `meshwright ui` serves, moves sliders, and waits for the
charts. The first picture is the plan before on the new numbers; the proof follows it.
The page is warm, and no question is asked twice, so that no answer is kept already. It
needs Playwright and the command chromium, as the tests of pages do.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import without_options
from benchmarks.browser import chromium, page_address

if TYPE_CHECKING:
    from playwright.sync_api import Page

SPECS = (
    *("llama3-8b-2xh100-nvlink", "llama2-13b-8xa100", "llama3-70b-16xh100"),
    *("mixtral-8x7b-64xh100", "llama3-70b-256xh100", "gpt3-175b-1024xa100"),
    "llama3-405b-16384xh100",
)
LARGE = 16_384
TARGET_S = {False: 0.5, True: 1.0}
"""Median seconds to a picture, by whether the cluster has 16,384 GPUs."""

MEASURE = """
async (moves) => {
  const shown = { carried: null, answer: null };
  const draw = window.drawPage;
  let began = 0;
  window.drawPage = (message, ...more) => {
    draw(message, ...more);
    shown[message.kind] ??= performance.now() - began;
  };
  const times = [];
  for (const [path, value] of moves) {
    shown.carried = shown.answer = null;
    began = performance.now();
    edit([[path, value]], SETTLE_MS);
    await new Promise((resolve) => {
      const wait = () => (shown.answer === null ? setTimeout(wait, 10) : resolve());
      wait();
    });
    times.push([shown.carried ?? shown.answer, shown.answer]);
  }
  window.drawPage = draw;
  return times;
}
"""


class Times(NamedTuple):
    """Median seconds of a spec's moves."""

    spec: str
    gpus: int
    picture_s: float
    proof_s: float


def main() -> None:
    """Measure and print."""
    with page_address() as site:
        found = measured(site)
    table = Table(title="Median seconds from a slider to the picture, and to the proof")
    for heading in ("spec", "GPUs", "picture s", "proof s"):
        table.add_column(heading, justify="left" if heading == "spec" else "right")
    for one in found:
        picture, proof = f"{one.picture_s:.2f}", f"{one.proof_s:.2f}"
        table.add_row(one.spec, f"{one.gpus:,}", picture, proof)
    console = Console(width=100)
    console.print(table)
    for is_large, target_s in TARGET_S.items():
        times = [one.picture_s for one in found if (one.gpus >= LARGE) == is_large]
        size = "16,384 GPUs" if is_large else "up to 1,024 GPUs"
        console.print(f"{size}: median {median(times):.2f} s, target {target_s} s")


def measured(site: str) -> list[Times]:
    """Return the times of every spec."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(site)
        return [_times(page, name) for name in SPECS]


def _times(page: Page, name: str) -> Times:
    """Choose a bundled spec, then move sliders to values that nothing was asked at."""
    page.locator("#start").fill(name)
    page.keyboard.press("Enter")
    page.wait_for_function(
        "name => state.plan && state.spec && CHOICES.specs[name].model === "
        "state.spec.model && document.getElementById('stop').hidden",
        arg=name,
        timeout=120_000,
    )
    moves = page.evaluate(
        "() => state.knobs.filter((own) => ['batch', 'memory', 'risk', 'bandwidth']"
        ".includes(own.name)).flatMap((own) => own.numbers.slice(own.at+1, own.at+3)"
        ".map((number) => [own.path, written(own, number)]))"
    )
    known = page.evaluate(MEASURE, moves)
    picture, proof = zip(*known, strict=True)
    gpus = page.evaluate("() => state.gpus")
    return Times(name, gpus, median(picture) / 1000, median(proof) / 1000)


if __name__ == "__main__":
    without_options(__doc__)
    main()
