"""The last lines of ./test: tests that passed only on a later try, and the count.

report.py JUNIT FLAKY reads the report of nextest and writes the names of flaky tests to the file FLAKY.
"""

import sys
import xml.etree.ElementTree as ElementTree

report, flaky_file = sys.argv[1:]
try:
    cases = ElementTree.parse(report).getroot().iter("testcase")
    cases = [case for case in cases if not case.get("classname").startswith("@setup-script")]
except FileNotFoundError:
    sys.exit("test: no test has run")
names = {case: f"{case.get('classname')} {case.get('name')}" for case in cases}
flaky = sorted(names[case] for case in cases if case.find("flakyFailure") is not None)
failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)

with open(flaky_file, "w") as file:
    file.writelines(name + "\n" for name in flaky)
if flaky:
    print(f"Passed only on a later try, which is a defect (also in {flaky_file}):")
    for name in flaky:
        print(f"  {name}")
print(f"tests: {len(cases) - failed} passed, {failed} failed")
