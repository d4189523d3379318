"""Runs modules of rdma-core's tests and prints a line for each test: "pyverbs", module, test, result, reason, by tabs.

Usage: run_pyverbs.py DIRECTORY MODULE[,MODULE...] [option of the tests]...
"""
import importlib
import os
import sys
import unittest

directory, modules = sys.argv[1], sys.argv[2].split(",")
sys.argv[1:] = sys.argv[3:]
sys.path[:0] = [os.path.dirname(directory), directory]
from args_parser import parser

parser.parse_args()


class Lines(unittest.TestResult):
    def line(self, test, result, reason=""):
        module, name = test.id().split(".", 2)[1:]
        reason = " ".join(str(reason).split())
        sys.stdout.flush()
        os.write(1, f"\npyverbs\t{module}\t{name}\t{result}\t{reason}\n".encode())

    def addSuccess(self, test):
        self.line(test, "pass")

    def addSkip(self, test, reason):
        self.line(test, "skip", reason)

    def addFailure(self, test, err):
        self.line(test, "fail", err[1])

    def addError(self, test, err):
        self.line(test, "error", f"{err[0].__name__}: {err[1]}")


loader = unittest.TestLoader()
result = Lines()
for module in modules:
    loader.loadTestsFromModule(importlib.import_module("tests." + module)).run(result)
os.write(1, b"\npyverbs\tend\n")
