"""Clients in another language: stubs made from proto/, one server, and expectations by numpy or from recorded vectors.

  python3 tests/client/stub --program build/release/bin/quantgated [unittest's arguments]
"""

import argparse
import pathlib
import sys
import tempfile
import unittest

import service


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True, type=pathlib.Path, help="quantgated")
    options, rest = parser.parse_known_args()
    lacking = service.lacking()
    if lacking:
        sys.exit(f"{sys.executable} lacks what stubs need, install (deploy/install_packages.sh --tests does): "
                 f"{' '.join(lacking)}")
    import cases
    with tempfile.TemporaryDirectory() as folder:
        cases.StubTest.service = service.Service(options.program.resolve(), folder)
        try:
            here = pathlib.Path(__file__).parent
            names = sorted(path.stem for path in here.glob("*_test.py"))
            program = unittest.main(module=None, argv=[sys.argv[0], *(rest or names)], exit=False)
        finally:
            exit_code = cases.StubTest.service.stop()
    if exit_code != 0:
        sys.exit(f"{options.program} ended with {exit_code}")
    return 0 if program.result.wasSuccessful() and program.result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
