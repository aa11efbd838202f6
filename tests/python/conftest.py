"""Tests of the Python package: PYTHONPATH has the package, QUANTGATE_PROGRAM the command that it is compared with."""
