#!/usr/bin/env python3
"""Makes the reports whose pictures docs/images keeps, checks them by axe, and takes the pictures.

    python3 -m venv /tmp/pictures && /tmp/pictures/bin/pip install playwright axe-playwright-python
    apt-get install chromium optipng
    /tmp/pictures/bin/python tests/report_pictures.py build/release/bin/quantgate [--pictures docs/images]

Needs no network and no GPU. Each page is opened at 1280 and at 390 pixels, light and dark, with every section unfolded:
it must not scroll sideways as a whole, and axe must find no violation. Exits with 1 otherwise, and names what it found.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
DATA = "data/bytegpt_block1.safetensors"
INPUTS = ["--input", f"{DATA}:fc1.x", "--weight", f"{DATA}:fc1.weight", "--grad-output", f"{DATA}:fc1.dy"]
LAYER = ["--layer", "linear", *INPUTS, "--bias", f"{DATA}:fc1.bias"]
TRACE = {
    "spec": {"layers": [{"name": "fc1", "layer": {"kind": "linear"}}], "masters": "f32", "adam": {"learning_rate": 0.001}},
    "parameters": {"fc1.weight": f"{DATA}:fc1.weight", "fc1.bias": f"{DATA}:fc1.bias"},
    "steps": [
        {"forward": {}, "x": f"{DATA}:fc1.x"},
        {"backward": {}, "grad_output": f"{DATA}:fc1.dy"},
        {"optimize": {}},
    ],
    "rounds": 3,
}
# Of a report: arguments, and the exit code.
REPORTS = {
    "compare": (["compare", *LAYER, "--recipe", "bf16,fp8_current,nvfp4", "--backward-override",
                 "none,dequantized"], 0),
    "run": (["run", *LAYER, "--recipe", "fp8_current", "--require", "bound", "-o", "out.safetensors"], 0),
    "verify": (["verify", *LAYER, "--subject", "out.safetensors", "--recipe", "fp8_current", "--backward-override",
                "dequantized"], 1),
    "verify_pass": (["verify", *LAYER, "--subject", "out.safetensors", "--recipe", "fp8_current"], 0),
    "trace": (["session", "run", "trace.json", "--recipe", "bf16,fp8_delayed,fp8_current,mxfp8"], 0),
    "overlap": (["run", "--tp", "2", "--parallel-mode", "row", "--sequence-parallel", "--overlap",
                 "row_fprop=ring_exchange,pieces=2", "--reduction-profile", "ub_p2p", *INPUTS, "--recipe", "fp8_current",
                 "--require", "bound"], 0),
}
# Of a kept picture: its report, width and theme; the height of what it shows.
PICTURES = {("compare", 1280, "light"): 900, ("compare", 390, "dark"): 900, ("verify", 1280, "dark"): 900}


def make_reports(quantgate: str, folder: pathlib.Path) -> None:
    (folder / "data").symlink_to(REPOSITORY / "data")
    (folder / "trace.json").write_text(json.dumps(TRACE))
    for name, (arguments, code) in REPORTS.items():
        command = [quantgate, *arguments, "--report", f"{name}.html"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != code:
            sys.exit(f"{name}: exit code {done.returncode}, not {code}\n{done.stderr}")


def findings_of(page, name: str) -> list[str]:
    found = []
    width = page.evaluate("document.documentElement.scrollWidth")
    if width > page.viewport_size["width"]:
        found.append(f"{name}: the page is {width} pixels wide")
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    for violation in Axe().run(page).response["violations"]:
        first = violation["nodes"][0]
        found.append(f"{name}: {violation['id']} ({len(violation['nodes'])}): {first['html'][:200]}\n"
                     f"  {first['failureSummary']}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("quantgate")
    parser.add_argument("--pictures", type=pathlib.Path, help="folder for the kept pictures")
    parser.add_argument("--all-pictures", type=pathlib.Path, help="folder for whole pages of every report")
    parser.add_argument("--only", nargs="*", default=list(REPORTS), help="reports to look at")
    arguments = parser.parse_args()
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        sys.exit("no chromium: apt-get install chromium")
    found = []
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        folder = pathlib.Path(made)
        make_reports(str(pathlib.Path(arguments.quantgate).resolve()), folder)
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for report in arguments.only:
            for width in (1280, 390):
                for theme in ("light", "dark"):
                    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
                    page.goto((folder / f"{report}.html").as_uri())
                    name = f"report_{report}_{width}_{theme}"
                    if arguments.all_pictures:
                        page.screenshot(path=arguments.all_pictures / f"{name}.png", full_page=True)
                    height = PICTURES.get((report, width, theme))
                    if arguments.pictures and height:
                        page.set_viewport_size({"width": width, "height": height})
                        path = arguments.pictures / f"{name}.png"
                        page.screenshot(path=path)
                        subprocess.run(["optipng", "-quiet", "-o5", "-strip", "all", path], check=True)
                    found += findings_of(page, name)
                    page.close()
        browser.close()
    print("\n".join(found) or f"no violations in {len(arguments.only)} reports at 2 widths in 2 themes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
